"""The produce benchmark: the same batch again and again, to a broker and to its store."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import urlsplit

import redis

from broker.store import resp
from broker.wire.batch import HEADER_SIZE, read_header
from broker.wire.frame import request_frame
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from broker.wire.records import Record, build_batch
from loadtest.bench.harness.client import PRODUCE, Client, RequestFailed
from loadtest.bench.harness.replay import LineReplayer, Replayer, Totals, run_load
from loadtest.bench.harness.target import Target

VERSION = 9
BROKER, RAW = "produce", "raw XADD"

Load = Callable[[], Coroutine[Any, Any, Totals]]


def make_batch(size: int) -> bytearray:
    """An uncompressed batch of about `size` bytes, of records of at most 1 KB."""
    value = bytes(max(min(1000, size - HEADER_SIZE - 12), 1))
    count = max(round((size - HEADER_SIZE) / (len(value) + 10)), 1)
    now = time.time_ns() // 1_000_000
    records = [Record(offset, now, None, value) for offset in range(count)]
    return bytearray(build_batch(records, base_offset=0, last_offset=count - 1))


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])
    return request_frame(PRODUCE, VERSION, 1, "bench", ProduceRequest(None, -1, 30_000, [data]))


def store_address(url: str) -> str | tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return parts.hostname or "localhost", parts.port or 6379


class ProduceBench:
    """One batch size. Every run has a topic of its own, which is gone afterwards."""

    baselines = {BROKER: RAW}  # noqa: RUF012
    roles = ("broker", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        self._target = target
        self._arguments = arguments
        self._batch = bytes(make_batch(size))
        self.size = size
        self._topic = ""

    def __enter__(self) -> ProduceBench:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def bytes_of(self, totals: Totals) -> int:
        return totals.requests * len(self._batch)

    def loads(self) -> Iterator[tuple[str, Load]]:
        if self._target.store_url is not None:
            yield RAW, self._raw
            self._forget_raw()
        # A new name each time: others delete in the background, and may still show the old topic.
        self._topic = f"bench-{secrets.token_hex(4)}"
        with Client(self._target.host, self._target.port) as client:
            client.create_topic(self._topic, self._arguments.partitions)
            try:
                yield BROKER, self._produce
            finally:
                client.delete_topic(self._topic)

    async def _produce(self) -> Totals:
        arguments = self._arguments
        with Client(self._target.host, self._target.port) as client:
            where = client.leaders(self._topic)
        connections: list[tuple[Callable[[], Replayer], str | tuple[str, int]]] = []
        for number in range(arguments.connections):
            partition = number % arguments.partitions
            frame = produce_frame(self._topic, partition, self._batch)
            connections.append((_replayer([frame], arguments.in_flight), where[partition]))
        totals = await run_load(connections, arguments.seconds)
        self._check(totals)
        return totals

    def _check(self, totals: Totals) -> None:
        """Every request that was answered is in the log, once."""
        with Client(self._target.host, self._target.port) as client:
            written = sum(client.end_offsets(self._topic).values())
        expected = totals.requests * read_header(self._batch).record_count
        if written != expected:
            raise RequestFailed(f"{expected} records acknowledged, {written} in the log")

    def _raw_keys(self) -> list[bytes]:
        return [b"bench:raw:%d" % number for number in range(self._arguments.partitions)]

    async def _raw(self) -> Totals:
        arguments = self._arguments
        assert self._target.store_url is not None
        address = store_address(self._target.store_url)
        keys = self._raw_keys()
        connections: list[tuple[Callable[[], Replayer], str | tuple[str, int]]] = []
        for number in range(arguments.connections):
            key = keys[number % len(keys)]
            frame = resp.command("XADD", key, "*", "b", self._batch)
            connections.append((_line_replayer([frame], arguments.in_flight), address))
        return await run_load(connections, arguments.seconds)

    def _forget_raw(self) -> None:
        assert self._target.store_url is not None
        store = redis.Redis.from_url(self._target.store_url)
        for key in self._raw_keys():
            store.delete(key)
        store.close()


def _replayer(frames: list[bytes], in_flight: int) -> Callable[[], Replayer]:
    return lambda: Replayer(frames, in_flight)


def _line_replayer(frames: list[bytes], in_flight: int) -> Callable[[], Replayer]:
    return lambda: LineReplayer(frames, in_flight)
