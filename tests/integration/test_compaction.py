"""Compaction as clients and operators meet it: real processes, real clients, crashes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from broker.errors import ErrorCode
from broker.wire.batch import CODEC_MASK, read_header
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.raw_calls import (
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
from tests.support.raw_client import RawClient, batches_in, make_batch
from tests.support.running import Broker, running_broker, wait_until

Start = Callable[..., Broker]
QUICK = {"log.retention.check.interval.ms": 100, "log.cleaner.backoff.ms": 100}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
PATIENCE_S = 30.0
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_names = (f"compaction-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Two workers that look for something to compact ten times a second."""
    with running_broker(unsaid=("Traceback", "hole"), workers=2, broker=QUICK) as started:
        yield started


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produce(
    client: RawClient, topic: str, *pairs: tuple[str, str | None], at: int | None = None
) -> int:
    """One batch, in an entry of its own; its base offset."""
    when = now_ms() if at is None else at
    records = [(key.encode(), None if v is None else v.encode(), when) for key, v in pairs]
    answer = client.produce(topic, make_batch(records))
    assert answer.error_code == 0
    return answer.base_offset


def offsets(client: RawClient, topic: str, start: int = 0) -> list[int]:
    return [record.offset for record in read_all(client, topic, start)]


def wait_offsets(client: RawClient, topic: str, expected: list[int], start: int = 0) -> None:
    """A worker that did not do it itself hears of a pass a moment later."""
    wait_until(lambda: offsets(client, topic, start) == expected, PATIENCE_S, f"{expected} left")


def wait_compacted(stored: StoredLog, end: int) -> None:
    """Until everything below `end` has been looked at and the old streams are gone."""
    wait_until(
        lambda: stored.part.end >= end and stored.generations == [stored.clean_key],
        PATIENCE_S,
        f"compacted up to offset {end}",
    )


def test_consumers_see_the_newest_of_each_key(
    broker: Broker, clients: list[RawClient], store: redis.Redis
) -> None:
    """From every offset, through either worker, with a real consumer, with the right metadata."""
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
    produce(clients[0], name, ("last", "1"))
    began = time.monotonic()
    wait_compacted(StoredLog(store, name), 3)
    while (seen := offsets(clients[0], name)) != [1, 3]:
        assert seen in ([0, 1, 2, 3], [1, 2, 3])
        assert time.monotonic() < began + PATIENCE_S
        time.sleep(0.05)
    assert time.monotonic() - began > 2.5, "the pass may have begun before we heard of the append"


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
                1,
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
    """To compact with records that have no key, and back again."""
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
    wait_until(lambda: clients[0].produce(name, keyless).error_code == 0, 5, "keyless is fine")
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
    wait_until(lambda: not store.keys(f"moldau:{name}*"), 5, "nothing is left of it")


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


def kill_everything(broker: Broker) -> None:
    """The supervisor first, so that it starts nothing again."""
    pids = (broker.pid, *broker.pids("worker"), *broker.pids("store"))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    broker.process.wait(10)
    wait_until(lambda: not broker.leftovers(), 10, "nothing runs any more")


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
    kill_everything(first)
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
    """Whoever compacts is killed, again and again: nothing promised is lost, no garbage stays."""
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
            store.delete(stored.key + b":cleaner")  # a dead worker's lease: do not wait for it
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
