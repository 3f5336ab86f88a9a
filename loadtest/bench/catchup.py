"""The catch-up benchmark: one consumer reads a whole topic, from its start to its end.

Six partitions are written first, --log-bytes together: more than the tail caches of the workers,
which hold their newest bytes. A consumer then
fetches as Java's does: one Fetch at a time to each leader, for the partitions of which it holds
nothing undigested, 1 MB of each at most. It digests what it got by a checksum over the records, and
asks for the next of a partition as soon as that is done. So the broker has work to do while the
client has, and a broker that reads only when it is asked makes the client wait.

Baseline: XRANGE through the same logs, a connection each, with as much work on the bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import zlib
from collections.abc import Iterator
from typing import Any, cast

from hiredis import Reader

from moldau.broker.store import keys
from moldau.broker.store.pipe import command
from moldau.broker.wire.batch import read_header, split_batches
from moldau.broker.wire.frame import LENGTH
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import (
    Address,
    Client,
    RequestFailed,
    check_error,
    new_name,
)
from moldau.loadtest.bench.harness.replay import Totals
from moldau.loadtest.bench.harness.requests import (
    TOPIC_REQUESTS,
    RequestTypes,
    decode,
    encode,
    produce_request,
)
from moldau.loadtest.bench.harness.secured import open_connection
from moldau.loadtest.bench.harness.target import Target, broker_under_test
from moldau.loadtest.bench.harness.turns import Comparison, Load, compare_sizes
from moldau.loadtest.bench.produce import make_batch, store_address

SIZES = [65536]
PARTITIONS = 6
PARTITION_BYTES = 1 << 20  # max.partition.fetch.bytes of Java's consumer
RESPONSE_BYTES = 50 << 20  # its fetch.max.bytes
CATCHUP, RAW = "catch-up", "raw XRANGE"


class Stream(asyncio.Protocol):
    """One connection: whole replies, one after the other."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._wanted: asyncio.Future[None] | None = None
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self.received += len(data)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_exception(ConnectionError(f"connection closed during the run: {exc}"))

    async def _more(self) -> None:
        self._wanted = asyncio.get_running_loop().create_future()
        await self._wanted

    async def frame(self) -> bytes:
        """The next frame, without its length."""
        while len(self._data) < LENGTH.size or len(self._data) < self._frame_size():
            await self._more()
        size = self._frame_size()
        frame = bytes(memoryview(self._data)[LENGTH.size : size])
        del self._data[:size]
        return frame

    def _frame_size(self) -> int:
        (length,) = LENGTH.unpack_from(self._data)
        return LENGTH.size + int(length)

    async def chunk(self) -> bytes:
        """Whatever has arrived."""
        if not self._data:
            await self._more()
        data = bytes(self._data)
        self._data.clear()
        return data


class LeaderReader:
    """The load of one consumer on one leader, up to the ends of these partitions."""

    def __init__(self, topic: str, ends: dict[int, int]) -> None:
        self._topic = topic
        self._ends = ends
        self._at = dict.fromkeys(ends, 0)
        self.requests = 0
        self.latencies: list[float] = []

    async def run(self, address: Address) -> int:
        """Read to the end; returns the bytes received."""
        stream = await open_connection(Stream, address)
        free = set(self._at)
        undigested: list[tuple[int, bytes]] = []
        try:
            while free or undigested:
                sent_at = time.perf_counter()
                asked = bool(free)
                if asked:
                    stream.transport.write(encode(self._request(free)))
                    self.requests += 1
                    free = set()
                    await asyncio.sleep(0)  # let it leave
                for partition, records in undigested:
                    zlib.crc32(records)
                    if self._at[partition] < self._ends[partition]:
                        free.add(partition)
                undigested = []
                if asked:
                    undigested = self._take(await stream.frame())
                    self.latencies.append(time.perf_counter() - sent_at)
        finally:
            stream.transport.close()
        return stream.received

    def _request(self, partitions: set[int]) -> FetchRequest:
        wanted = [
            FetchPartition(
                partition,
                fetch_offset=self._at[partition],
                partition_max_bytes=PARTITION_BYTES,
            )
            for partition in sorted(partitions)
        ]
        topic = FetchTopic(self._topic, partitions=wanted)
        return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=RESPONSE_BYTES, topics=[topic])

    def _take(self, frame: bytes) -> list[tuple[int, bytes]]:
        found = []
        for answer in decode(FetchRequest, frame).responses[0].partitions:
            check_error(f"{self._topic}-{answer.partition_index}", answer.error_code)
            if not answer.records:
                raise RequestFailed(f"{self._topic}-{answer.partition_index}: no records")
            *_, last = split_batches(answer.records)
            self._at[answer.partition_index] = read_header(last).next_offset
            found.append((answer.partition_index, answer.records))
        return found


class CatchUpComparison(Comparison):
    """One batch size."""

    baselines = {CATCHUP: RAW}  # noqa: RUF012

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        super().__init__(target, arguments, size)
        self._topic = new_name()

    def __enter__(self) -> CatchUpComparison:
        batch = make_batch(self.size)
        batches = self._arguments.log_bytes // len(batch) // PARTITIONS
        with Client(self._target.address) as client:
            client.create_topic(self._topic, PARTITIONS)
            self._leaders = client.leaders(self._topic)
            for partition, leader in self._leaders.items():
                request = produce_request(self._topic, partition, batch)
                with Client(leader) as producer:
                    for _ in range(batches):
                        answer = producer.ask(request)
                        code = answer.responses[0].partition_responses[0].error_code
                        check_error(self._topic, code)
            self._ends = client.end_offsets(self._topic)
        return self

    def __exit__(self, *exc: object) -> None:
        with Client(self._target.address) as client:
            client.delete_topic(self._topic)

    def loads(self) -> Iterator[tuple[str, Load]]:
        if self._target.store_url is not None:
            yield RAW, self._raw
        yield CATCHUP, self._consume

    async def _consume(self) -> Totals:
        by_leader: dict[Address, dict[int, int]] = {}
        for partition, leader in self._leaders.items():
            by_leader.setdefault(leader, {})[partition] = self._ends[partition]
        readers = {leader: LeaderReader(self._topic, ends) for leader, ends in by_leader.items()}
        began = time.perf_counter()
        received = await asyncio.gather(*(each.run(leader) for leader, each in readers.items()))
        seconds = time.perf_counter() - began
        latencies = sorted(one for each in readers.values() for one in each.latencies)
        requests = sum(each.requests for each in readers.values())
        return Totals(requests, sum(received), seconds, latencies)

    async def _raw(self) -> Totals:
        began = time.perf_counter()
        found = await asyncio.gather(*map(self._range, self._leaders))
        seconds = time.perf_counter() - began
        latencies = sorted(one for each, _ in found for one in each)
        return Totals(len(latencies), sum(size for _, size in found), seconds, latencies)

    async def _range(self, partition: int) -> tuple[list[float], int]:
        """Through one log, 1 MB at a time."""
        assert self._target.store_url is not None
        key = keys.stream(self._topic, 0, partition)
        count = max(PARTITION_BYTES // self.size, 1)
        stream = await open_connection(Stream, store_address(self._target.store_url))
        reader, following = Reader(), b"-"
        latencies: list[float] = []
        try:
            while True:
                sent_at = time.perf_counter()
                words = ("XRANGE", key, following, "+", "COUNT", count)
                stream.transport.write(command(*words))
                reply: Any = False
                while reply is False:
                    reader.feed(await stream.chunk())
                    reply = reader.gets()
                latencies.append(time.perf_counter() - sent_at)
                for _, fields in reply:
                    zlib.crc32(fields[1])
                if len(reply) < count:
                    return latencies, stream.received
                following = b"(" + reply[-1][0]
        finally:
            stream.transport.close()


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    needed: RequestTypes = [ProduceRequest, FetchRequest, *TOPIC_REQUESTS]
    with broker_under_test(arguments, needed) as target:
        sizes = arguments.size or SIZES
        return compare_sizes(CatchUpComparison, sizes, target, arguments, advance)


BENCHMARK = Benchmark(
    name="catchup",
    summary="one consumer reads six partitions from start to end, 1 MB of each at a time",
    baseline="raw XRANGE through the same logs",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
    any_broker=True,
)
