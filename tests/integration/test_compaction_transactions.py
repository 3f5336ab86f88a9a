"""A compacted topic with transactions, as clients see it while it is compacted all the time."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.batch import CONTROL, read_header
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from tests.support.brokers.compacting import COMPACT, PATIENCE_S, compacting_broker
from tests.support.brokers.running import Broker, wait_until
from tests.support.drivers.committed_client import visible
from tests.support.raw.calls import StoredLog, alter_topic, create_topic, worker_clients
from tests.support.raw.client import NAMED_FETCH, RawClient, batches_in

READ_COMMITTED = 1
READS = 30  # on each worker
COMPACTIONS = 5  # meanwhile, at least
AT_ONCE = {**COMPACT, "delete.retention.ms": "0", "min.compaction.lag.ms": "0"}
_names = (f"compacted-transactions-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with compacting_broker() as started:
        yield started


class Writer:
    """Transactional producers of one partition, and what became of their records."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._bootstrap = broker.bootstrap
        self._topic = topic
        self._producers: dict[str, Producer] = {}
        self._open: dict[str, dict[int, tuple[bytes, bytes]]] = {}
        self.committed: dict[int, tuple[bytes, bytes]] = {}  # key and value, by offset
        self.aborted: set[int] = set()

    def write(self, name: str, *keys: str, size: int = 10) -> None:
        producer = self._producers.get(name)
        if producer is None:
            options = {"bootstrap.servers": self._bootstrap, "linger.ms": 0, "log_level": 0}
            producer = self._producers[name] = Producer(
                {**options, "transactional.id": f"{self._topic}-{name}"}
            )
            producer.init_transactions(30)
        if name not in self._open:
            producer.begin_transaction()
            self._open[name] = {}
        mine = self._open[name]

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            mine[message.offset()] = (message.key(), message.value())

        for key in keys:
            value = f"{name}-{len(self.committed) + len(mine)}".encode().ljust(size, b".")
            producer.produce(self._topic, value, key.encode(), 0, on_delivery=delivered)
        assert producer.flush(30) == 0

    def end(self, name: str, *, commit: bool) -> None:
        records = self._open.pop(name)
        if commit:
            # Before, as readers may see it before the producer knows.
            self.committed = {**self.committed, **records}
            self._producers[name].commit_transaction(30)
        else:
            self._producers[name].abort_transaction(30)
            self.aborted |= records.keys()

    def newest(self, start: int, end: int) -> dict[bytes, int]:
        return {self.committed[at][0]: at for at in sorted(self.committed) if start <= at < end}


# --- clients, a few records at a time ---

Step = Callable[[int], list[int]]


def confluent_steps(bootstrap: str, topic: str) -> Iterator[Step]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 2000,
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read(count: int) -> list[int]:
        found = consumer.consume(count, 2.0)
        assert all(message.error() is None for message in found)
        return [int(str(message.offset())) for message in found]

    yield read
    consumer.close()


def kafka_python_steps(bootstrap: str, topic: str) -> Iterator[Step]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        max_partition_fetch_bytes=2000,
    )
    place = PythonPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)

    def read(count: int) -> list[int]:
        found = consumer.poll(2000, max_records=count)
        return [record.offset for record in found.get(place, [])]

    yield read
    consumer.close()


def aiokafka_steps(bootstrap: str, topic: str) -> Iterator[Step]:
    loop = asyncio.new_event_loop()

    async def start() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_partition_fetch_bytes=2000,
        )
        await consumer.start()
        consumer.assign([AioPartition(topic, 0)])
        consumer.seek(AioPartition(topic, 0), 0)
        return consumer

    consumer = loop.run_until_complete(start())

    def read(count: int) -> list[int]:
        getting = consumer.getmany(timeout_ms=2000, max_records=count)
        found = loop.run_until_complete(getting)
        return [record.offset for records in found.values() for record in records]

    yield read
    loop.run_until_complete(consumer.stop())
    loop.close()


@pytest.mark.parametrize("client", [confluent_steps, kafka_python_steps, aiokafka_steps])
def test_7_23_a_client_in_the_middle_of_what_is_compacted(
    broker: Broker, client: Callable[[str, str], Iterator[Step]]
) -> None:
    """It has read the beginning of an aborted transaction whose marker is gone when it goes on."""
    topic = next(_names)
    with worker_clients(broker) as raw, redis.from_url(broker.store_url) as store:
        create_topic(raw[0], topic, {**AT_ONCE, "min.compaction.lag.ms": "3600000"})
        writer = Writer(broker, topic)
        for number in range(8):
            # Larger than a fetch, so that each is one batch.
            writer.write("other", f"o{number}", size=3000)
            writer.write("same", f"s{number}", size=3000)
        writer.end("other", commit=True)
        writer.end("same", commit=False)
        for number in range(4):
            writer.write("same", f"t{number}", size=3000)
        writer.end("same", commit=True)
        writer.write("other", "last")
        writer.end("other", commit=True)
        expected = sorted(writer.committed)
        steps = client(broker.bootstrap, topic)
        step = next(steps)
        seen: list[int] = []
        while len(seen) < 2:
            seen += step(1)
        alter_topic(raw[0], topic, {"min.compaction.lag.ms": "0"})
        stored = StoredLog(store, topic)
        wait_until(lambda: stored.part.end >= expected[-1], PATIENCE_S, "compacted")
        entries = store.xrange(stored.clean_key)
        kept = [read_header(fields[b"b"]) for _, fields in entries]
        assert not any(header.attributes & CONTROL for header in kept)
        while len(seen) < len(expected):
            more = step(5)
            assert more, f"{len(seen)} of {len(expected)} records"
            seen += more
        next(steps, None)
        assert seen == expected


# --- all at once ---


def committed_fetch(client: RawClient, topic: str, offset: int, max_bytes: int) -> PartitionData:
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=20,
        min_bytes=1,
        isolation_level=READ_COMMITTED,
        topics=[FetchTopic(topic, partitions=[wanted])],
    )
    answer: PartitionData
    (answer,) = client.call(request, NAMED_FETCH).responses[0].partitions
    assert answer.error_code == 0
    return answer


def read_to_the_end(client: RawClient, topic: str, offset: int, max_bytes: int) -> dict[int, bytes]:
    """Keys by offset, until there is nothing more to read."""
    found: dict[int, bytes] = {}
    empty = 0
    while empty < 2:
        answer = committed_fetch(client, topic, offset, max_bytes)
        batches = batches_in(answer)
        if not batches:
            empty += 1
            continue
        empty = 0
        listed = [
            AbortedTransaction(0, each.first_offset, each.producer_id, 0)
            for each in answer.aborted_transactions or []
        ]
        found |= {
            record.offset: record.key or b""
            for record in visible(batches, listed)
            if record.offset >= offset
        }
        offset = read_header(batches[-1]).next_offset
    return found


def test_7_23_readers_on_every_worker_while_it_is_compacted(broker: Broker) -> None:
    """Nothing that was aborted is read, and of each key the newest that was committed."""
    topic = next(_names)
    ended = threading.Event()
    reads = [0, 0]
    rng = random.Random(5)
    with worker_clients(broker) as clients, redis.from_url(broker.store_url) as store:
        create_topic(clients[0], topic, AT_ONCE)
        writer = Writer(broker, topic)

        def write() -> None:
            opened: set[str] = set()
            deadline = time.monotonic() + 2 * PATIENCE_S
            stored = StoredLog(store, topic)
            while min(reads) < READS or stored.part.generation <= COMPACTIONS:
                if any(reader.done() for reader in readers):
                    break  # one has failed
                assert time.monotonic() < deadline, f"{reads} reads, {stored.part}"
                name = rng.choice(("a", "b", "c"))
                if name in opened and rng.random() < 0.4:
                    writer.end(name, commit=rng.random() < 0.5)
                    opened.discard(name)
                else:
                    writer.write(name, *(f"key-{rng.randrange(12)}" for _ in range(2)))
                    opened.add(name)
            for name in opened:
                writer.end(name, commit=False)

        def read(number: int) -> None:
            mine = random.Random(number)
            while not ended.is_set():
                end = committed_fetch(clients[number], topic, 0, 1).last_stable_offset
                start = mine.randint(0, end)
                before = writer.newest(start, end)
                limit = mine.choice((300, 2000, 1 << 20))
                seen = read_to_the_end(clients[number], topic, start, limit)
                assert seen.keys() <= writer.committed.keys(), seen.keys() & writer.aborted
                found = {seen[at]: at for at in sorted(seen)}
                for key, at in before.items():
                    assert found.get(key, -1) >= at, (key, at, found.get(key))
                reads[number] += 1

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read, number) for number in range(2)]
            try:
                write()
            finally:
                ended.set()
            for reader in readers:
                reader.result()
        assert writer.aborted
