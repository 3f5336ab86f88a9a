"""The produce benchmark: the same batch again and again, to a broker and to its store.

Pre-encoded Produce requests over several connections. Baseline: XADD of the same bytes to the same
store, by the same client.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import redis

from moldau.broker.store.pipe import command
from moldau.broker.wire.batch import HEADER_SIZE, read_header
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.broker.wire.records import Record, build_batch
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed
from moldau.loadtest.bench.harness.replay import Address, Totals, XaddReplayer, replaying, run_load
from moldau.loadtest.bench.harness.requests import TOPIC_REQUESTS, encode, produce_request
from moldau.loadtest.bench.harness.secured import wants_nothing
from moldau.loadtest.bench.harness.target import Target, broker_under_test
from moldau.loadtest.bench.harness.turns import Comparison, Load, compare_sizes

SIZES = [1024, 16384, 65536, 262144]
BROKER, RAW = "produce", "raw XADD"


def make_batch(size: int) -> bytes:
    """An uncompressed batch of about `size` bytes, of records of at most 1 KB."""
    value = bytes(max(min(1000, size - HEADER_SIZE - 12), 1))
    count = max(round((size - HEADER_SIZE) / (len(value) + 10)), 1)
    now = time.time_ns() // 1_000_000
    records = [Record(offset, now, None, value) for offset in range(count)]
    return bytes(build_batch(records, base_offset=0, last_offset=count - 1))


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    return encode(produce_request(topic, partition, batch))


def store_address(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return wants_nothing((parts.hostname or "localhost", parts.port or 6379))


class ProduceComparison(Comparison):
    """One batch size. Every run has a topic of its own, deleted afterwards."""

    baselines = {BROKER: RAW}  # noqa: RUF012

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        super().__init__(target, arguments, size)
        self._batch = make_batch(size)

    def bytes_moved(self, totals: Totals) -> int:
        return totals.requests * len(self._batch)

    def loads(self) -> Iterator[tuple[str, Load]]:
        if self._target.store_url is not None:
            yield RAW, self._raw(self._target.store_url)
            self._delete_raw(self._target.store_url)
        with (
            Client(self._target.address) as client,
            client.temporary_topic(self._arguments.partitions) as topic,
        ):
            yield BROKER, lambda: self._produce(topic)

    async def _produce(self, topic: str) -> Totals:
        arguments = self._arguments
        with Client(self._target.address) as client:
            leaders = client.leaders(topic)
        connections = []
        for number in range(arguments.connections):
            partition = number % arguments.partitions
            frame = produce_frame(topic, partition, self._batch)
            connections.append(replaying([frame], arguments.in_flight, leaders[partition]))
        totals = await run_load(connections, arguments.seconds)
        self._check(topic, totals)
        return totals

    def _check(self, topic: str, totals: Totals) -> None:
        """Every acknowledged batch is in the log, once."""
        with Client(self._target.address) as client:
            written = sum(client.end_offsets(topic).values())
        expected = totals.requests * read_header(self._batch).record_count
        if written != expected:
            raise RequestFailed(f"{expected} records acknowledged, {written} in the log")

    # --- the baseline ---

    def _raw_keys(self) -> list[bytes]:
        return [b"bench:raw:%d" % number for number in range(self._arguments.partitions)]

    def _raw(self, store_url: str) -> Load:
        arguments = self._arguments
        address, keys = store_address(store_url), self._raw_keys()
        frames = [
            command("XADD", keys[number % len(keys)], "*", "b", self._batch)
            for number in range(arguments.connections)
        ]
        connections = [
            (lambda frame=frame: XaddReplayer([frame], arguments.in_flight), address)
            for frame in frames
        ]
        return lambda: run_load(connections, arguments.seconds)

    def _delete_raw(self, store_url: str) -> None:
        with redis.Redis.from_url(store_url) as store:
            for key in self._raw_keys():
                store.delete(key)


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    with broker_under_test(arguments, [ProduceRequest, *TOPIC_REQUESTS]) as target:
        sizes = arguments.size or SIZES
        return compare_sizes(ProduceComparison, sizes, target, arguments, advance)


BENCHMARK = Benchmark(
    name="produce",
    summary="Produce requests with batches of 1 KB to 256 KB",
    baseline="raw XADD of the same bytes to the same store",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
    any_broker=True,
    small={"size": [1024, 65536]},
)
