"""Compaction as clients and operators meet it: real processes, real clients."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import CODEC_MASK, read_header
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.brokers.compacting import (
    COMPACT,
    PATIENCE_S,
    QUICK,
    compacting_broker,
    now_ms,
    offsets,
    produce,
    wait_compacted,
    wait_offsets,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    StoredLog,
    alter_brokers,
    alter_topic,
    create_topic,
    delete_records,
    list_offset,
    partition_size,
    read_all,
    worker_clients,
)
from tests.support.raw.client import RawClient, batches_in, make_batch

Start = Callable[..., Broker]
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_names = (f"compaction-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with compacting_broker() as started:
        yield started


def test_consumers_see_the_newest_of_each_key(
    broker: Broker, clients: list[RawClient], store: redis.Redis
) -> None:
    """This holds from every offset, through either worker, and for a real consumer."""
    name = next(_names)
    create_topic(clients[0], name, COMPACT)
    base = now_ms() - 100_000
    newest: dict[bytes, int] = {}
    for number in range(300):
        key = f"key-{number * 7 % 40}"
        client = clients[number % 2]
        newest[key.encode()] = produce(client, name, (key, f"{number}"), at=base + number)
    stored = StoredLog(store, name)
    wait_compacted(stored, 299)
    kept = sorted(newest.values())
    for client in clients:
        wait_offsets(client, name, kept)
        for offset in range(0, 300, 7):
            # In a gap, on either side of the border, with small and with large fetches.
            for limit in (1, 1 << 20):
                seen = read_all(client, name, offset, max_bytes=limit)
                assert [record.offset for record in seen] == [o for o in kept if o >= offset]
        answer = client.fetch(name, 0)
        assert (answer.log_start_offset, answer.high_watermark) == (0, 300)
        assert list_offset(client, name, EARLIEST).offset == 0
        assert list_offset(client, name, LATEST).offset == 300
        newest_record = list_offset(client, name, MAX_TIMESTAMP)
        assert (newest_record.offset, newest_record.timestamp) == (299, base + 299)
        for number in range(0, 300, 11):
            expected = next(offset for offset in kept if offset >= number)
            assert list_offset(client, name, base + number).offset == expected
    assert partition_size(clients, name) == stored.bytes_from(0)
    assert (stored.entries(), stored.clean_entries()) == (1, 1)

    settings = {"group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    got: list[int] = []
    while len(got) < len(kept):
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(got)} of {len(kept)} records"
        assert message.error() is None
        got.append(message.offset() or 0)
    consumer.close()
    assert got == kept


def test_producers_go_on_where_they_were(clients: list[RawClient], store: redis.Redis) -> None:
    name = next(_names)
    create_topic(clients[0], name, COMPACT)
    for number in range(10):
        produce(clients[0], name, ("key", f"{number}"))
    wait_compacted(StoredLog(store, name), 9)
    for number, client in enumerate(clients):
        assert produce(client, name, ("key", "more")) == 10 + number


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.values())
def test_batches_keep_their_codec(clients: list[RawClient], store: redis.Redis, codec: int) -> None:
    name = next(_names)
    create_topic(clients[0], name, COMPACT)
    for number in range(20):
        records = [
            (f"key-{i}-{i % 10 and number}".encode(), b"x" * 100, now_ms()) for i in range(50)
        ]
        assert clients[0].produce(name, make_batch(records, codec=codec)).error_code == 0
    stored = StoredLog(store, name)
    before = partition_size(clients, name)
    wait_compacted(stored, 950)
    keys_written = 5 + 45 * 20
    wait_until(
        lambda: len(read_all(clients[0], name)) == keys_written, 5, "one record of each is left"
    )
    answer = clients[0].fetch(name, 0)
    assert {read_header(batch).attributes & CODEC_MASK for batch in batches_in(answer)} == {codec}
    assert len({record.key for record in read_all(clients[0], name)}) == keys_written
    assert partition_size(clients, name) == stored.bytes_from(0) < before


def test_tombstones(clients: list[RawClient], store: redis.Redis) -> None:
    """Kept for a while so that consumers hear of them, then gone, without a write in between."""
    name = next(_names)
    create_topic(clients[0], name, {**COMPACT, "delete.retention.ms": 3000})
    produce(clients[0], name, ("gone", "1"), ("kept", "1"))
    produce(clients[0], name, ("gone", None))
    began = time.monotonic()
    produce(clients[0], name, ("last", "1"))
    wait_compacted(StoredLog(store, name), 3)
    while (seen := offsets(clients[0], name)) != [1, 3]:
        assert seen in ([0, 1, 2, 3], [1, 2, 3])
        assert time.monotonic() < began + PATIENCE_S
        time.sleep(0.05)
    assert time.monotonic() - began > 2.5


def test_a_record_may_ask_for_time(clients: list[RawClient], store: redis.Redis) -> None:
    """min.compaction.lag.ms: nothing is compacted while records are young, then it is."""
    name, other = next(_names), next(_names)
    create_topic(clients[0], name, {**COMPACT, "min.compaction.lag.ms": 3_600_000})
    create_topic(clients[0], other, COMPACT, partitions=2)
    for number in range(10):
        produce(clients[0], name, ("key", f"{number}"))
    batch = make_batch([(b"key", b"value", now_ms())])
    for partition in (0, 0, 1, 1):
        clients[0].produce(other, batch, partition=partition)
    for partition in (0, 1):
        wait_compacted(StoredLog(store, other, partition), 1)  # every cleaner was at work
    assert offsets(clients[0], name) == [*range(10)]
    alter_topic(clients[0], name, {"min.compaction.lag.ms": 0})
    wait_compacted(StoredLog(store, name), 9)
    wait_offsets(clients[0], name, [9])


def test_no_record_waits_longer_than_it_may(clients: list[RawClient], store: redis.Redis) -> None:
    """max.compaction.lag.ms: however little of the log is dirty."""
    name = next(_names)
    create_topic(clients[0], name, {**COMPACT, "min.cleanable.dirty.ratio": 1.0})
    for number in range(10):
        produce(clients[0], name, ("key", f"{number}"), at=now_ms() - 10_000)
    assert StoredLog(store, name).part.generation == 0
    alter_topic(clients[0], name, {"max.compaction.lag.ms": 5000})
    wait_compacted(StoredLog(store, name), 9)
    wait_offsets(clients[0], name, [9])


def test_compact_and_delete(clients: list[RawClient], store: redis.Redis) -> None:
    """Retention and DeleteRecords reach into the cleaned part and past it."""
    name = next(_names)
    policy = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": -1}
    create_topic(clients[0], name, policy)
    base = now_ms() - 1_000_000
    for number in range(100):
        produce(clients[0], name, (f"key-{number % 60}", "x" * 100), at=base + number * 1000)
    stored = StoredLog(store, name)
    wait_compacted(stored, 99)
    kept = [*range(40, 100)]
    wait_offsets(clients[0], name, kept)

    for client, start in ((clients[1], 45), (clients[0], 70), (clients[1], 99)):
        assert delete_records(client, name, start).low_watermark == start
        for each in clients:
            wait_until(
                lambda c=each, s=start: list_offset(c, name, EARLIEST).offset == s,  # type: ignore[misc]
                PATIENCE_S,
                "everybody knows",
            )
            assert offsets(each, name, start) == [o for o in kept if o >= start]
            assert each.fetch(name, start - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition_size(clients, name) == stored.bytes_from(start)
    wait_until(lambda: stored.clean_entries() == 0, PATIENCE_S, "the cleaned part is freed")

    for number in range(100, 200):
        produce(clients[0], name, (f"key-{number % 60}", "x" * 100), at=base + number * 1000)
    wait_compacted(stored, 199)
    retention = now_ms() - (base + 180_000)
    alter_topic(clients[0], name, {"retention.ms": retention})

    def start_of() -> int:
        return list_offset(clients[0], name, EARLIEST).offset

    # The cleaned part is one entry here, so it goes as soon as its newest record is too old.
    alter_topic(clients[0], name, {"retention.ms": now_ms() - (base + 198_500)})
    wait_until(lambda: start_of() == 199, PATIENCE_S, "the cleaned part has expired")
    assert partition_size(clients, name) == stored.bytes_from(199)
    alter_topic(clients[0], name, {"retention.ms": 1})
    wait_until(lambda: start_of() == 200, PATIENCE_S, "everything has expired")
    assert partition_size(clients, name) == 0
    assert produce(clients[1], name, ("key", "more"), at=now_ms() + 60_000) == 200


def test_a_topic_may_change_its_policy(clients: list[RawClient], store: redis.Redis) -> None:
    """It becomes compact with records that have no key, and is changed back."""
    name = next(_names)
    create_topic(clients[0], name, {"retention.ms": -1})
    clients[0].produce(name, make_batch([(None, b"keyless", now_ms()), (b"a", b"1", now_ms())]))
    produce(clients[0], name, ("a", "2"))
    alter_topic(clients[0], name, COMPACT)
    produce(clients[0], name, ("a", "3"))
    keyless = make_batch([(None, b"keyless", now_ms())])
    assert clients[0].produce(name, keyless).error_code == ErrorCode.INVALID_RECORD
    wait_compacted(StoredLog(store, name), 3)
    wait_offsets(clients[0], name, [3])
    alter_topic(clients[0], name, {"cleanup.policy": "delete"})
    wait_until(lambda: clients[0].produce(name, keyless).error_code == 0, 30, "keyless is fine")
    produce(clients[0], name, ("a", "5"))
    wait_offsets(clients[0], name, [3, 4, 5])
    alter_topic(clients[0], name, {"retention.ms": 1})
    wait_until(
        lambda: list_offset(clients[0], name, EARLIEST).offset == 6, PATIENCE_S, "all expired"
    )


def test_deleting_a_compacted_topic_leaves_nothing(
    broker: Broker, clients: list[RawClient], store: redis.Redis
) -> None:
    name = next(_names)
    create_topic(clients[0], name, COMPACT)
    for number in range(20):
        produce(clients[0], name, (f"key-{number % 3}", "x"))
    wait_compacted(StoredLog(store, name), 19)
    (answer,) = (
        clients[0]
        .call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000))
        .responses
    )
    assert answer.error_code == 0
    wait_until(lambda: not store.keys(f"*moldau:{name}*"), 30, "nothing is left of it")


def test_settings_of_the_cleaner(start_moldau: Start) -> None:
    """A longer pause that is under way ends when it is shortened."""
    broker = start_moldau(workers=1, broker={"log.cleaner.backoff.ms": 3_600_000})
    with worker_clients(broker) as (client,), redis.from_url(broker.store_url) as store:
        create_topic(client, "topic", COMPACT)
        for number in range(10):
            produce(client, "topic", ("key", f"{number}"))
        time.sleep(1)
        stored = StoredLog(store, "topic")
        assert stored.part.generation == 0
        alter_brokers(client, {"log.cleaner.backoff.ms": 100})
        wait_compacted(stored, 9)


def test_compaction_can_be_turned_off(start_moldau: Start) -> None:
    settings = {**QUICK, "log.cleaner.enable": "false"}
    broker = start_moldau(workers=1, broker=settings)
    with worker_clients(broker) as (client,), redis.from_url(broker.store_url) as store:
        create_topic(client, "compacted", COMPACT)
        create_topic(client, "deleted", {"retention.ms": 1})
        for topic in ("compacted", "deleted"):
            for _ in range(5):
                produce(client, topic, ("key", "value"), at=now_ms() - 1000)
        wait_until(lambda: StoredLog(store, "deleted").entries() == 1, PATIENCE_S, "retention runs")
        assert StoredLog(store, "compacted").part.generation == 0
