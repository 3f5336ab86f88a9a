"""Compaction while producers write, and while what compacts is killed: no promise is broken."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from confluent_kafka import Producer

from moldau.broker.errors import ErrorCode
from moldau.broker.store import keys
from tests.support.brokers.compacting import (
    COMPACT,
    PATIENCE_S,
    QUICK,
    compacting_broker,
    now_ms,
    produce,
    wait_compacted,
    wait_offsets,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import (
    LATEST,
    StoredLog,
    create_topic,
    list_offset,
    partition_size,
    read_all,
    worker_clients,
)
from tests.support.raw.client import RawClient, make_batch

Start = Callable[..., Broker]
_names = (f"under-way-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with compacting_broker() as started:
        yield started


def test_producers_are_known_after_compaction_and_a_crash_of_everything(
    start_moldau: Start,
) -> None:
    """The batches their sequences followed from are compacted away."""
    first = start_moldau(workers=2, broker=QUICK)
    name = next(_names)
    sequenced = [
        make_batch(
            [(b"key", b"value", now_ms())] * 2,
            producer_id=producer, producer_epoch=1, base_sequence=2 * number,
        )
        for producer in (5, 6)
        for number in range(8)
    ]  # fmt: skip
    with worker_clients(first) as clients, redis.from_url(first.store_url) as store:
        create_topic(clients[0], name, COMPACT)
        for batch in sequenced:
            assert clients[0].produce(name, batch).error_code == 0
        wait_compacted(StoredLog(store, name), 30)
        wait_offsets(clients[1], name, [30, 31])
        size = partition_size(clients, name)
    first.kill_everything()
    second = start_moldau(workers=2, broker=QUICK, data_dir=first.data_dir)
    with worker_clients(second) as clients:
        for client in clients:
            assert client.produce(name, sequenced[7]).base_offset == 14, "a retry is recognised"
            assert client.produce(name, sequenced[15]).base_offset == 30
            gap = make_batch(
                [(b"key", b"value", now_ms())], producer_id=5, producer_epoch=1, base_sequence=99
            )
            answer = client.produce(name, gap)
            assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            wait_offsets(client, name, [30, 31])
        assert partition_size(clients, name) == size
        following = make_batch(
            [(b"key", b"value", now_ms())], producer_id=5, producer_epoch=1, base_sequence=16
        )
        assert clients[0].produce(name, following).base_offset == 32


class Writers:
    """Idempotent producers that write to one partition, and what they were promised of it."""

    def __init__(self, bootstrap: str, topic: str, count: int, keys: int) -> None:
        self._topic = topic
        self._keys = keys
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[bytes, tuple[int, bytes]] = {}  # key: its newest offset and value
        self.written = 0
        self._pool = ThreadPoolExecutor(count)
        self._done = [self._pool.submit(self._write, number) for number in range(count)]

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 60_000,
            }
        )

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            with self._lock:
                self.written += 1
                known = self.acknowledged.get(message.key())
                if known is None or known[0] < message.offset():
                    self.acknowledged[message.key()] = message.offset(), message.value()

        for sequence in itertools.count():
            if self._stop.is_set():
                break
            key = f"key-{rng.randrange(self._keys)}"
            producer.produce(
                self._topic, f"{number}-{sequence}", key, partition=0, on_delivery=delivered
            )
            producer.poll(0)
            if sequence % 20 == 0:
                producer.poll(0.005)
        assert producer.flush(60) == 0

    def promised(self) -> dict[bytes, tuple[int, bytes]]:
        with self._lock:
            return dict(self.acknowledged)

    def stop(self) -> dict[bytes, tuple[int, bytes]]:
        self._stop.set()
        for done in self._done:
            done.result(90)
        self._pool.shutdown()
        return self.promised()


def check_promises(client: RawClient, topic: str, writers: Writers, rng: random.Random) -> None:
    """A scan from anywhere shows, of each key, nothing older than what was acknowledged before."""
    promised = writers.promised()
    end = max((offset for offset, _ in promised.values()), default=0)
    start = rng.choice((0, rng.randint(0, end)))
    limit = rng.choice((20_000, 200_000, 1 << 20))
    seen = {record.key: record for record in read_all(client, topic, start, max_bytes=limit)}
    for key, (offset, value) in promised.items():
        if offset < start:
            continue
        record = seen.get(key)
        assert record is not None, f"{key!r} at {offset} is lost (scan from {start})"
        assert record.offset >= offset, f"{key!r}: {record.offset} shown, {offset} acknowledged"
        assert record.offset > offset or record.value == value


def test_readers_and_writers_while_it_is_compacted(
    broker: Broker, clients: list[RawClient], store: redis.Redis
) -> None:
    """Passes run all the time under four producers; scans through both workers miss nothing."""
    name, rng = next(_names), random.Random(1)
    create_topic(clients[0], name, COMPACT)
    stored = StoredLog(store, name)
    writers = Writers(broker.bootstrap, name, 4, keys=200)
    generations: set[int] = set()
    deadline = time.monotonic() + 60
    while len(generations) < 6:
        assert time.monotonic() < deadline, f"only {len(generations)} passes"
        check_promises(rng.choice(clients), name, writers, rng)
        generations.add(stored.part.generation)
    final = writers.stop()
    end = list_offset(clients[0], name, LATEST).offset
    assert end == writers.written, "offsets are dense"
    for client in clients:
        seen = {r.key: (r.offset, r.value) for r in read_all(client, name)}
        assert seen == final
    wait_until(
        lambda: stored.bytes_from(0) < 1 << 20, PATIENCE_S, "most of what was written is gone"
    )
    wait_until(
        lambda: partition_size(clients, name) == stored.bytes_from(0), PATIENCE_S, "sizes are right"
    )


def test_workers_die_in_the_middle_of_passes(start_moldau: Start) -> None:
    """The compacting worker is killed, again and again: nothing is lost, no garbage stays."""
    broker = start_moldau(workers=2, broker=QUICK)
    name, rng = next(_names), random.Random(2)
    with worker_clients(broker) as clients, redis.from_url(broker.store_url) as store:
        create_topic(clients[0], name, COMPACT)
        stored = StoredLog(store, name)
        writers = Writers(broker.bootstrap, name, 2, keys=5000)
        for _ in range(4):
            wait_until(lambda: stored.is_being_compacted, PATIENCE_S, "a pass is under way")
            for index in rng.sample((0, 1), rng.choice((1, 2))):
                pid = broker.kill("worker", index)
                broker.wait_restarted("worker", index, pid)
            store.delete(keys.cleaner(stored.key))  # a dead worker's lease: do not wait for it
            with worker_clients(broker) as new:
                check_promises(rng.choice(new), name, writers, rng)
        final = writers.stop()
    with worker_clients(broker) as clients:
        for client in clients:
            assert {r.key: (r.offset, r.value) for r in read_all(client, name)} == final
        end = list_offset(clients[0], name, LATEST).offset
        produce(clients[0], name, ("last", "1"))
        produce(clients[0], name, ("last", "2"))
        wait_compacted(stored, end + 1)
        wait_until(lambda: stored.entries() == 1, PATIENCE_S, "the live stream is trimmed")
        assert partition_size(clients, name) == stored.bytes_from(0)
