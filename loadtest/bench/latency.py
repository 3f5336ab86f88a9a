"""The latency benchmark: one small record at a time, from the produce call to the consumer.

Open loop: records go out on a schedule, and nobody waits for an answer before the next one, so a
slow broker cannot hide behind a waiting client. Measured from the write (the event loop's timers
are good to a millisecond, which is not the broker's doing). The consumer is parked in a Fetch at
the end of the log. Both live in one event loop: two threads would wait for each other's
interpreter lock, and that would be measured; nor is garbage collected there meanwhile. The first
record of a topic, for which its log has to be loaded, goes ahead and is not counted. Baseline: a
bare uvloop server's answer to as small a request.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import uvloop

from broker.wire.batch import headers
from broker.wire.frame import read_response, request_frame
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from broker.wire.messages.produce import ProduceResponse
from loadtest.bench.harness.client import FETCH, PRODUCE, Client, RequestFailed
from loadtest.bench.harness.replay import Totals
from loadtest.bench.harness.target import Target
from loadtest.bench.produce import VERSION as PRODUCE_VERSION
from loadtest.bench.produce import make_batch, produce_frame

FETCH_VERSION = 12
RECORD_BYTES = 100
PATIENCE_S = 30.0


class Frames(asyncio.Protocol):
    """One connection: frames out, and every frame that comes in told to `arrived`."""

    def __init__(self, arrived: Callable[[bytes], None]) -> None:
        self._arrived = arrived
        self._pending = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def send(self, frame: bytes) -> None:
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        pending = self._pending + data
        at = 0
        while len(pending) - at >= 4:
            (size,) = struct.unpack_from(">i", pending, at)
            end = at + 4 + size
            if end > len(pending):
                break
            try:
                self._arrived(pending[at + 4 : end])
            except Exception as fault:
                self.fail(fault)
                return
            at = end
        self._pending = pending[at:]

    def fail(self, fault: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ConnectionError(f"connection closed in mid-run: {exc}"))

    def close(self) -> None:
        self.ended.cancel()
        self._transport.close()


class Schedule:
    """Sends at fixed times; one timer, and all that is due when it fires."""

    def __init__(self, send: Callable[[], None], count: int, per_second: float) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._started = time.perf_counter()
        self._per_second = per_second
        self._count = count
        self._sent_at: list[float] = []
        self._fire()

    def latencies(self, arrivals: list[float]) -> list[float]:
        return sorted(at - sent for at, sent in zip(arrivals, self._sent_at, strict=True))

    def _fire(self) -> None:
        while (number := len(self._sent_at)) < self._count:
            now = time.perf_counter()
            wait = self._started + number / self._per_second - now
            if wait > 0:
                self._loop.call_later(wait, self._fire)
                return
            self._sent_at.append(now)
            self._send()


class RecordRun:
    """A producer and a parked consumer of one partition."""

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._count = count + 1  # with the one that goes ahead
        self._offset = 0
        self.arrivals: list[float] = []
        self.acknowledged = 0
        self.first_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.all_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetches: Frames | None = None

    def attach(self, fetches: Frames) -> None:
        self._fetches = fetches
        self._ask()

    def _ask(self) -> None:
        assert self._fetches is not None
        partition = FetchPartition(0, fetch_offset=self._offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=1000, min_bytes=1, topics=[FetchTopic(self._topic, partitions=[partition])]
        )
        self._fetches.send(request_frame(FETCH, FETCH_VERSION, 1, "bench", request))

    def fetched(self, frame: bytes) -> None:
        now = time.perf_counter()
        answer = cast("FetchResponse", read_response(FETCH, FETCH_VERSION, frame)[1])
        partition = answer.responses[0].partitions[0]
        if partition.error_code:
            raise RequestFailed(f"a fetch was refused: error {partition.error_code}")
        records = partition.records or b""
        blob = b"".join(records) if isinstance(records, list) else records
        for header in headers(blob):
            self.arrivals.extend([now] * header.record_count)
            self._offset = header.next_offset
        if self._offset and not self.first_there.done():
            self.first_there.set_result(None)
            self.arrivals.clear()
        if self._offset < self._count:
            self._ask()
        else:
            self.all_there.set_result(None)

    def produced(self, frame: bytes) -> None:
        answer = cast("ProduceResponse", read_response(PRODUCE, PRODUCE_VERSION, frame)[1])
        if answer.responses[0].partition_responses[0].error_code:
            raise RequestFailed("a record was refused")
        self.acknowledged += 1


def record_latency(target: Target, per_second: float, seconds: float) -> Totals:
    """Latencies of `per_second * seconds` records."""
    topic = f"bench-{secrets.token_hex(4)}"
    with Client(target.host, target.port) as admin:
        admin.create_topic(topic, 1)
        try:
            where = admin.leaders(topic)[0]
            return uvloop.run(_measure(where, topic, per_second, int(per_second * seconds)))
        finally:
            admin.delete_topic(topic)


async def _measure(where: tuple[str, int], topic: str, per_second: float, count: int) -> Totals:
    loop = asyncio.get_running_loop()
    run = RecordRun(topic, count)
    _, producer = await loop.create_connection(lambda: Frames(run.produced), *where)
    _, consumer = await loop.create_connection(lambda: Frames(run.fetched), *where)
    run.attach(consumer)
    frame = produce_frame(topic, 0, bytes(make_batch(RECORD_BYTES)))
    producer.send(frame)
    await _until(run.first_there, (producer, consumer), PATIENCE_S)
    with no_collection():
        started = time.perf_counter()
        schedule = Schedule(lambda: producer.send(frame), count, per_second)
        await _until(run.all_there, (producer, consumer), count / per_second + PATIENCE_S)
        elapsed = time.perf_counter() - started
    producer.close()
    consumer.close()
    return Totals(count, count * RECORD_BYTES, elapsed, schedule.latencies(run.arrivals))


async def _until(there: asyncio.Future[None], links: Sequence[Frames], patience: float) -> None:
    """Until something has arrived, or a connection has ended, or nobody would wait any longer."""
    ends = [link.ended for link in links]
    await asyncio.wait([there, *ends], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    if not there.done():
        for ended in ends:
            if ended.done():
                ended.result()
        raise RequestFailed(f"not every record was there after {patience:.0f} s")


@contextmanager
def no_collection() -> Iterator[None]:
    """A pause of ours would be measured as the broker's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def echo_latency(per_second: float, seconds: float) -> Totals:
    """Round trips of small frames to a bare uvloop server, on the same schedule."""
    server = subprocess.Popen(
        [sys.executable, "-m", "loadtest.bench.harness.echo_server", str(RECORD_BYTES)],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        return uvloop.run(_measure_echo(port, per_second, int(per_second * seconds)))
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


async def _measure_echo(port: int, per_second: float, count: int) -> Totals:
    arrivals: list[float] = []
    loop = asyncio.get_running_loop()
    first_there: asyncio.Future[None] = loop.create_future()
    all_there: asyncio.Future[None] = loop.create_future()

    def arrived(frame: bytes) -> None:
        if not first_there.done():
            first_there.set_result(None)
            return
        arrivals.append(time.perf_counter())
        if len(arrivals) == count:
            all_there.set_result(None)

    _, link = await loop.create_connection(lambda: Frames(arrived), "127.0.0.1", port)
    frame = struct.pack(">i", RECORD_BYTES) + bytes(RECORD_BYTES)
    link.send(frame)
    await _until(first_there, (link,), PATIENCE_S)
    with no_collection():
        started = time.perf_counter()
        schedule = Schedule(lambda: link.send(frame), count, per_second)
        await _until(all_there, (link,), count / per_second + PATIENCE_S)
        elapsed = time.perf_counter() - started
    link.close()
    return Totals(count, count * len(frame), elapsed, schedule.latencies(arrivals))
