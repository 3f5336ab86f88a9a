"""The latency benchmark: one small record at a time, from the produce call to a waiting consumer.

Open loop: records are sent on a schedule without waiting for the responses, so a slow broker cannot
hide behind a waiting client. Measured from the write: the event loop's timers are accurate to a
millisecond, which is not the broker's doing. The consumer is parked in a Fetch at the end of the
log. Both live in one event loop, because two threads would wait for each other's interpreter lock;
garbage is not collected during the run. The first record of a topic, for which its log has to be
loaded, is not counted. Baseline: a bare uvloop server's response to as small a request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvloop

from moldau.broker.wire.batch import headers
from moldau.broker.wire.messages.fetch import FetchRequest, FetchResponse
from moldau.broker.wire.messages.produce import ProduceRequest, ProduceResponse
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed, check_error
from moldau.loadtest.bench.harness.echo_server import echo_server
from moldau.loadtest.bench.harness.figures import Figures, summaries
from moldau.loadtest.bench.harness.frames import FrameProtocol
from moldau.loadtest.bench.harness.measure import CpuMeter, megabytes
from moldau.loadtest.bench.harness.replay import Totals
from moldau.loadtest.bench.harness.requests import (
    TOPIC_REQUESTS,
    RequestTypes,
    decode,
    encode,
    fetch_request,
)
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target, broker_under_test
from moldau.loadtest.bench.produce import make_batch, produce_frame

RECORD_BYTES = 100
ARRIVAL_TIMEOUT_S = 30.0
FETCH_WAIT_MS = 1000
PERCENTILES = {"p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99, "max ms": 1.0}
ECHO, RECORD = "bare uvloop", "record"


class FrameConnection(FrameProtocol):
    """Passes every received frame to `on_frame`; `ended` fails when the connection does."""

    def __init__(self, on_frame: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_frame = on_frame
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def frame_received(self, frame: bytes) -> None:
        try:
            self._on_frame(frame)
        except Exception as error:  # reported by `ended`: the event loop would only log it
            self._fail(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"connection closed during the run: {exc}"))

    def _fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        self.ended.cancel()
        super().close()


class SendSchedule:
    """Sends at fixed times; one timer, which sends all that is due when it fires."""

    def __init__(self, send: Callable[[], None], count: int, per_second: float) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._started = time.perf_counter()
        self._per_second = per_second
        self._count = count
        self._sent_at: list[float] = []
        self._send_due()

    def latencies(self, arrivals: list[float]) -> list[float]:
        return sorted(at - sent for at, sent in zip(arrivals, self._sent_at, strict=True))

    def _send_due(self) -> None:
        while (number := len(self._sent_at)) < self._count:
            now = time.perf_counter()
            wait = self._started + number / self._per_second - now
            if wait > 0:
                self._loop.call_later(wait, self._send_due)
                return
            self._sent_at.append(now)
            self._send()


class ProducerAndConsumer:
    """A producer and a parked consumer of one partition."""

    def __init__(self, topic: str, count: int) -> None:
        loop = asyncio.get_running_loop()
        self._topic = topic
        self._count = count + 1  # with the first one, which is not counted
        self._offset = 0
        self._consumer: FrameConnection | None = None
        self.arrivals: list[float] = []
        self.first_arrived: asyncio.Future[None] = loop.create_future()
        self.all_arrived: asyncio.Future[None] = loop.create_future()

    def start(self, consumer: FrameConnection) -> None:
        self._consumer = consumer
        self._fetch()

    def _fetch(self) -> None:
        assert self._consumer is not None
        request = fetch_request(self._topic, 0, self._offset, 1 << 20, FETCH_WAIT_MS)
        self._consumer.send(encode(request))

    def on_fetch_response(self, frame: bytes) -> None:
        now = time.perf_counter()
        answer: FetchResponse = decode(FetchRequest, frame)
        partition = answer.responses[0].partitions[0]
        check_error("Fetch", partition.error_code)
        records = partition.records or b""
        batches = b"".join(records) if isinstance(records, list) else records
        for header in headers(batches):
            self.arrivals.extend([now] * header.record_count)
            self._offset = header.next_offset
        if self._offset and not self.first_arrived.done():
            self.first_arrived.set_result(None)
            self.arrivals.clear()
        if self._offset < self._count:
            self._fetch()
        else:
            self.all_arrived.set_result(None)

    def on_produce_response(self, frame: bytes) -> None:
        answer: ProduceResponse = decode(ProduceRequest, frame)
        check_error("Produce", answer.responses[0].partition_responses[0].error_code)


def record_latency(target: Target, per_second: float, seconds: float) -> Totals:
    """Latencies of `per_second * seconds` records."""
    with Client(target.address) as admin, admin.temporary_topic(1) as topic:
        leader = admin.leaders(topic)[0]
        return uvloop.run(_measure(leader, topic, per_second, int(per_second * seconds)))


async def _measure(leader: tuple[str, int], topic: str, per_second: float, count: int) -> Totals:
    run = ProducerAndConsumer(topic, count)
    producer = await open_connection(lambda: FrameConnection(run.on_produce_response), leader)
    consumer = await open_connection(lambda: FrameConnection(run.on_fetch_response), leader)
    run.start(consumer)
    frame = produce_frame(topic, 0, make_batch(RECORD_BYTES))
    producer.send(frame)
    await _until(run.first_arrived, (producer, consumer), ARRIVAL_TIMEOUT_S)
    with no_garbage_collection():
        started = time.perf_counter()
        schedule = SendSchedule(lambda: producer.send(frame), count, per_second)
        timeout = count / per_second + ARRIVAL_TIMEOUT_S
        await _until(run.all_arrived, (producer, consumer), timeout)
        elapsed = time.perf_counter() - started
    producer.close()
    consumer.close()
    return Totals(count, count * RECORD_BYTES, elapsed, schedule.latencies(run.arrivals))


async def _until(
    arrived: asyncio.Future[None], connections: Sequence[FrameConnection], seconds: float
) -> None:
    """Raises what ended a connection, or RequestFailed after so many seconds."""
    ends = [connection.ended for connection in connections]
    await asyncio.wait([arrived, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not arrived.done():
        for ended in ends:
            if ended.done():
                ended.result()
        raise RequestFailed(f"not every record had arrived after {seconds:.0f} s")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A pause of the client would be counted as the broker's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def echo_latency(target: Target, per_second: float, seconds: float) -> Totals:
    """Round trips of small frames to a bare uvloop server, on the same schedule."""
    with echo_server(RECORD_BYTES) as ((_, port), _):
        return uvloop.run(_measure_echo(port, per_second, int(per_second * seconds)))


async def _measure_echo(port: int, per_second: float, count: int) -> Totals:
    arrivals: list[float] = []
    loop = asyncio.get_running_loop()
    first_arrived: asyncio.Future[None] = loop.create_future()
    all_arrived: asyncio.Future[None] = loop.create_future()

    def on_response(frame: bytes) -> None:
        if not first_arrived.done():
            first_arrived.set_result(None)
            return
        arrivals.append(time.perf_counter())
        if len(arrivals) == count:
            all_arrived.set_result(None)

    _, connection = await loop.create_connection(
        lambda: FrameConnection(on_response), "127.0.0.1", port
    )
    frame = struct.pack(">i", RECORD_BYTES) + bytes(RECORD_BYTES)
    connection.send(frame)
    await _until(first_arrived, (connection,), ARRIVAL_TIMEOUT_S)
    with no_garbage_collection():
        started = time.perf_counter()
        schedule = SendSchedule(lambda: connection.send(frame), count, per_second)
        await _until(all_arrived, (connection,), count / per_second + ARRIVAL_TIMEOUT_S)
        elapsed = time.perf_counter() - started
    connection.close()
    return Totals(count, count * len(frame), elapsed, schedule.latencies(arrivals))


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    needed: RequestTypes = [ProduceRequest, FetchRequest, *TOPIC_REQUESTS]
    series: dict[str, list[Figures]] = {ECHO: [], RECORD: []}
    with broker_under_test(arguments, needed) as target:
        for _ in range(arguments.repeat):
            for name, measured in ((ECHO, echo_latency), (RECORD, record_latency)):
                meter = CpuMeter(target.pids)
                totals = measured(target, arguments.rate, arguments.seconds)
                used = meter.stop()
                figures: Figures = {"records/s": totals.per_second}
                figures |= {key: totals.percentile_ms(share) for key, share in PERCENTILES.items()}
                for role in ("broker", "worker", "store"):
                    each = used[role] / max(totals.requests, 1) * 1e6
                    is_known = target.pids[role] and name == RECORD
                    figures[f"{role} us/record"] = each if is_known else None
                figures["broker MB"] = megabytes(target.broker_pids)
                series[name].append(figures)
            advance()
    return [{"run": name, **summaries(turns)} for name, turns in series.items()]


BENCHMARK = Benchmark(
    name="latency",
    summary="from the produce call to a waiting consumer, open loop (`--rate 1000`)",
    baseline="the round trip to a bare uvloop server",
    run=_run,
    rounds=lambda arguments: int(arguments.repeat),
    any_broker=True,
)
