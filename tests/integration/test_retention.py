"""Retention by time and size, and DeleteRecords: log starts right everywhere, memory freed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from moldau.broker.errors import ErrorCode
from moldau.broker.store import keys
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import (
    EARLIEST,
    LATEST,
    StoredLog,
    alter_topic,
    create_topic,
    delete_records,
    list_offset,
    partition_size,
    read_all,
    worker_clients,
)
from tests.support.raw.client import RawClient, batches_in, make_batch, records_in

Start = Callable[..., Broker]
QUICK = {"log.retention.check.interval.ms": 200, "log.cleaner.backoff.ms": 200}
PATIENCE_S = 60.0
HOUR_MS = 3_600_000
_names = (f"retention-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Two workers that look at their logs five times a second."""
    with running_broker(workers=2, broker=QUICK) as started:
        yield started


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce(
    client: RawClient, topic: str, batches: int, age_ms: int = 0, *, size: int = 100, count: int = 2
) -> None:
    """Batches of `count` records, each batch an entry of its own."""
    when = now_ms() - age_ms
    for _ in range(batches):
        batch = make_batch([(b"key", os.urandom(size), when)] * count)
        assert client.produce(topic, batch).error_code == 0


def start_of(client: RawClient, topic: str) -> int:
    answer = list_offset(client, topic, EARLIEST)
    assert answer.error_code == 0
    return answer.offset


def check_start(clients: list[RawClient], topic: str, start: int, end: int) -> None:
    """Every worker says the same of the log, in every answer that tells of it, soon."""
    for client in clients:
        deadline = time.monotonic() + PATIENCE_S
        while (said := start_of(client, topic)) != start:
            assert time.monotonic() < deadline, f"log start {said}, not {start}"
        assert list_offset(client, topic, LATEST).offset == end
        at_start = client.fetch(topic, start)
        assert at_start.error_code == 0
        assert (at_start.log_start_offset, at_start.high_watermark) == (start, end)
        if start < end:
            assert records_in(at_start, start)[0].offset == start
        for outside in (start - 1, 0, end + 1):
            if not start <= outside <= end:
                answer = client.fetch(topic, outside)
                assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                assert answer.log_start_offset == start
                assert not batches_in(answer)
    for number, client in enumerate(clients):
        appended = client.produce(topic, make_batch([(b"key", b"more", now_ms())]))
        assert (appended.base_offset, appended.log_start_offset) == (end + number, start)


def test_by_time(broker: Broker, clients: list[RawClient], store: redis.Redis) -> None:
    """Through both workers in turn, so that the leader does not see every append."""
    name = next(_names)
    create_topic(clients[0], name, {"retention.ms": HOUR_MS})
    for client in clients * 3:
        produce(client, name, 5, age_ms=2 * HOUR_MS)
    produce(clients[1], name, 5)
    wait_until(lambda: start_of(clients[0], name) == 60, PATIENCE_S, "the old ones are gone")
    stored = StoredLog(store, name)
    assert stored.entries() == 5
    assert partition_size(clients, name) == stored.bytes_from(60)
    check_start(clients, name, 60, 70)


def test_a_younger_record_keeps_what_is_behind_it(clients: list[RawClient]) -> None:
    name = next(_names)
    create_topic(clients[0], name, {"retention.ms": HOUR_MS})
    produce(clients[0], name, 2, age_ms=2 * HOUR_MS)
    produce(clients[0], name, 1)
    produce(clients[0], name, 2, age_ms=2 * HOUR_MS)
    wait_until(lambda: start_of(clients[0], name) == 4, PATIENCE_S, "the old ones are gone")
    alter_topic(clients[0], name, {"retention.ms": 3 * HOUR_MS})
    produce(clients[0], name, 1, age_ms=2 * HOUR_MS)
    assert start_of(clients[0], name) == 4
    assert len(read_all(clients[0], name, 4)) == 8


def test_records_without_a_time_go_with_those_that_have_one(clients: list[RawClient]) -> None:
    name, other = next(_names), next(_names)
    for topic in (name, other):
        create_topic(clients[0], topic, {"retention.ms": HOUR_MS})
        clients[0].produce(topic, make_batch([(b"key", b"timeless", -1)]))
    produce(clients[0], name, 1, age_ms=2 * HOUR_MS)
    clients[0].produce(name, make_batch([(b"key", b"timeless", -1)]))
    wait_until(lambda: start_of(clients[0], name) == 3, PATIENCE_S, "both are gone")
    assert start_of(clients[0], other) == 0
    check_start(clients, name, 3, 4)


def test_by_size(clients: list[RawClient], store: redis.Redis) -> None:
    name = next(_names)
    create_topic(clients[0], name, {"retention.bytes": 10_000})
    for client in clients * 2:
        produce(client, name, 10, size=500)
    stored = StoredLog(store, name)
    entry = stored.bytes_from(79)
    wait_until(
        lambda: partition_size(clients, name) < 10_000 + entry, PATIENCE_S, "the surplus is gone"
    )
    start = start_of(clients[0], name)
    wait_until(lambda: stored.entries() == 40 - start // 2, PATIENCE_S, "and freed")
    size = partition_size(clients, name)
    assert size == stored.bytes_from(start)
    assert size >= 10_000, "no more than needed is removed"
    check_start(clients, name, start, 80)


def test_a_change_of_retention_is_heeded(clients: list[RawClient]) -> None:
    name = next(_names)
    create_topic(clients[0], name, {"retention.ms": -1})
    produce(clients[0], name, 3, age_ms=1000)
    alter_topic(clients[1], name, {"retention.ms": 100})
    wait_until(lambda: start_of(clients[0], name) == 6, PATIENCE_S, "all are gone")
    alter_topic(clients[1], name, {"retention.ms": HOUR_MS})
    check_start(clients, name, 6, 6)


def test_nothing_is_removed_without_a_limit(clients: list[RawClient]) -> None:
    """Checked against a topic of the same leader that does lose its records meanwhile."""
    kept, lost = next(_names), next(_names)
    create_topic(clients[0], kept, {"retention.ms": -1}, partitions=2)
    create_topic(clients[0], lost, {"retention.ms": 1}, partitions=2)
    for topic, partition in itertools.product((kept, lost), (0, 1)):
        batch = make_batch([(b"key", b"value", now_ms() - 30 * 24 * HOUR_MS)])
        assert clients[0].produce(topic, batch, partition=partition).error_code == 0
    for partition in (0, 1):
        wait_until(
            lambda p=partition: list_offset(clients[0], lost, EARLIEST, partition=p).offset == 1,  # type: ignore[misc]
            PATIENCE_S,
            "its leader was at work",
        )
        assert list_offset(clients[0], kept, EARLIEST, partition=partition).offset == 0


def test_memory_and_index_are_given_back(clients: list[RawClient], store: redis.Redis) -> None:
    name = next(_names)
    create_topic(clients[0], name, {"retention.ms": -1, "retention.bytes": -1})
    produce(clients[0], name, 120, age_ms=1000, size=50_000)  # 11 MiB
    stored = StoredLog(store, name)
    assert len(stored.index_points()) >= 10
    full = stored.memory()
    assert full > 11 << 20
    alter_topic(clients[0], name, {"retention.bytes": 3 << 20})
    wait_until(lambda: stored.memory() < 4 << 20, PATIENCE_S, "the surplus is freed")
    start = start_of(clients[0], name)
    wait_until(lambda: stored.index_points()[0] >= start, PATIENCE_S, "the index is shortened")
    assert len(stored.index_points()) <= 3
    assert partition_size(clients, name) == stored.bytes_from(start)
    alter_topic(clients[0], name, {"retention.ms": 100})
    wait_until(lambda: stored.entries() == 1, PATIENCE_S, "all but the last entry is freed")
    wait_until(lambda: len(stored.index_points()) <= 1, PATIENCE_S, "and its index")
    assert partition_size(clients, name) == 0
    assert stored.memory() < 1 << 20


def test_delete_records(clients: list[RawClient], store: redis.Redis) -> None:
    name = next(_names)
    create_topic(clients[0], name)
    produce(clients[0], name, 10, count=10)
    stored = StoredLog(store, name)
    whole = partition_size(clients, name)
    for client, asked, start in (
        (clients[0], 0, 0),
        (clients[1], 34, 34),
        (clients[0], 20, 34),  # it never moves back
        (clients[0], 50, 50),
    ):
        answer = delete_records(client, name, asked)
        assert (answer.error_code, answer.low_watermark) == (0, start)
        for each in clients:
            wait_until(lambda c=each, s=start: start_of(c, name) == s, 30, f"it starts at {start}")  # type: ignore[misc]
        assert stored.entries() == 10 - start // 10, "entries go as wholes"
        assert partition_size(clients, name) == stored.bytes_from(start) <= whole
        assert [record.offset for record in read_all(clients[1], name, start)] == [
            *range(start, 100)
        ]
    for offset in (101, -2):
        answer = delete_records(clients[1], name, offset)
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    answer = delete_records(clients[1], name, -1)
    assert (answer.error_code, answer.low_watermark) == (0, 100)
    assert partition_size(clients, name) == 0
    check_start(clients, name, 100, 100)


def test_delete_records_needs_a_policy_that_deletes(clients: list[RawClient]) -> None:
    name = next(_names)
    create_topic(clients[0], name, {"cleanup.policy": "compact"})
    produce(clients[0], name, 1)
    assert delete_records(clients[0], name, 1).error_code == ErrorCode.POLICY_VIOLATION
    assert start_of(clients[0], name) == 0


def test_a_compacted_topic_keeps_its_old_records(clients: list[RawClient]) -> None:
    name, other = next(_names), next(_names)
    create_topic(clients[0], name, {"cleanup.policy": "compact", "retention.ms": 1})
    create_topic(clients[0], other, {"retention.ms": 1}, partitions=2)
    for topic in (name, other):
        batch = make_batch([(b"key", b"value", now_ms() - HOUR_MS)])
        clients[0].produce(topic, batch)
    clients[0].produce(other, batch, partition=1)
    for partition in (0, 1):
        wait_until(
            lambda p=partition: list_offset(clients[0], other, EARLIEST, partition=p).offset == 1,  # type: ignore[misc]
            PATIENCE_S,
            "every leader was at work",
        )
    assert start_of(clients[0], name) == 0


def test_the_log_start_outlives_a_crash_of_everything(start_moldau: Start) -> None:
    """So does the end of a log that is empty, and what is known of its producers."""
    first = start_moldau(workers=2, broker=QUICK)
    expired, deleted = next(_names), next(_names)
    sequenced = [
        make_batch(
            [(b"key", b"value", now_ms() - HOUR_MS)] * 3,
            producer_id=77, producer_epoch=0, base_sequence=3 * number,
        )
        for number in range(4)
    ]  # fmt: skip
    with worker_clients(first) as clients:
        create_topic(clients[0], expired, {"retention.ms": 1000})
        create_topic(clients[0], deleted)
        for topic, batch in itertools.product((expired, deleted), sequenced):
            assert clients[0].produce(topic, batch).error_code == 0
        delete_records(clients[0], deleted, 7)
        wait_until(lambda: start_of(clients[0], expired) == 12, PATIENCE_S, "all are expired")
    first.kill_everything()
    second = start_moldau(workers=2, broker=QUICK, data_dir=first.data_dir)
    with worker_clients(second) as clients:
        for client in clients:
            assert start_of(client, expired) == list_offset(client, expired, LATEST).offset == 12
            assert start_of(client, deleted) == 7
            again = client.produce(expired, sequenced[3])
            assert (again.error_code, again.base_offset) == (0, 9), "a duplicate is recognised"
        assert partition_size(clients, expired) == 0
        check_start(clients, expired, 12, 12)
        check_start(clients, deleted, 7, 12)


def test_what_a_crash_left_is_trimmed_later(start_moldau: Start) -> None:
    """The log start was raised, and the worker died before it trimmed."""
    broker = start_moldau(workers=1, broker=QUICK)
    name = next(_names)
    with worker_clients(broker) as clients, redis.from_url(broker.store_url) as store:
        create_topic(clients[0], name)
        produce(clients[0], name, 10)
        stored = StoredLog(store, name)
        size = stored.bytes_from(0)
        store.hset(keys.state(stored.key), mapping={"start": 10, "start_bytes": size // 2})
        pid = broker.kill("worker")
        broker.wait_restarted("worker", 0, pid)
    with worker_clients(broker) as clients, redis.from_url(broker.store_url) as store:
        stored = StoredLog(store, name)
        wait_until(lambda: stored.entries() == 5, PATIENCE_S, "the rest is trimmed")
        assert partition_size(clients, name) == stored.bytes_from(10)
        check_start(clients, name, 10, 20)


def test_retention_makes_room_in_a_full_store(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, broker=QUICK, store_maxmemory="40mb")
    with worker_clients(broker) as clients:
        name = next(_names)
        create_topic(clients[0], name)
        batch = make_batch([(b"key", os.urandom(500_000), now_ms())])
        accepted = 0
        while (answer := clients[0].produce(name, batch)).error_code == 0:
            accepted += 1
            assert accepted < 100
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert list_offset(clients[1], name, LATEST).offset == accepted
        assert len(read_all(clients[1], name)) == accepted, "reads go on"
        delete_records(clients[0], name, accepted // 2)
        wait_until(
            lambda: clients[0].produce(name, batch).error_code == 0, PATIENCE_S, "there is room"
        )
        assert start_of(clients[0], name) == accepted // 2
