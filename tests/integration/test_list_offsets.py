"""ListOffsets: where a log begins and ends, and which offset belongs to a time."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import pytest
import redis

from moldau.broker.errors import ErrorCode
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    StoredLog,
    create_topic,
    delete_records,
    list_offset,
    worker_clients,
)
from tests.support.raw.client import RawClient, make_batch

EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
NOTHING = (-1, -1)
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_names = (f"list-offsets-{number}" for number in itertools.count())


@pytest.fixture
def clients(moldau: Broker) -> Iterator[list[RawClient]]:
    with worker_clients(moldau) as made:
        yield made


@pytest.fixture
def client(clients: list[RawClient]) -> RawClient:
    return clients[0]


@pytest.fixture
def topic(client: RawClient) -> str:
    name = next(_names)
    create_topic(client, name)
    return name


@pytest.fixture(scope="module")
def now() -> int:
    return time.time_ns() // 1_000_000 - 60_000


def produce(client: RawClient, topic: str, timestamps: list[int], codec: int = 0) -> None:
    """One batch with a record per timestamp."""
    batch = make_batch([(b"key", b"value", when) for when in timestamps], codec=codec)
    assert client.produce(topic, batch).error_code == 0


def found(client: RawClient, topic: str, timestamp: int) -> tuple[int, int]:
    """Offset and timestamp of the answer; the same from every version that gives both."""
    answers = {
        (answer.error_code, answer.offset, answer.timestamp)
        for answer in (
            list_offset(client, topic, timestamp, version=version) for version in (7, 11)
        )
    }
    assert len(answers) == 1
    error, offset, when = answers.pop()
    assert error == 0
    return offset, when


def test_the_ends_of_an_empty_log(client: RawClient, topic: str, now: int) -> None:
    for wanted in (EARLIEST, LATEST):
        assert found(client, topic, wanted) == (0, -1)
    assert found(client, topic, MAX_TIMESTAMP) == NOTHING
    assert found(client, topic, 0) == NOTHING
    assert found(client, topic, now) == NOTHING


def test_read_committed_finds_the_start_of_a_log_without_stable_records(
    client: RawClient, topic: str
) -> None:
    for wanted in (EARLIEST, EARLIEST_LOCAL, LATEST):
        answer = list_offset(client, topic, wanted, isolation_level=1)
        assert (answer.offset, answer.leader_epoch) == (0, 0)


def test_the_ends_of_a_log(clients: list[RawClient], topic: str, now: int) -> None:
    produce(clients[0], topic, [now, now + 1, now + 2])
    produce(clients[1], topic, [now + 3])
    assert delete_records(clients[0], topic, 2).low_watermark == 2
    wait_until(lambda: found(clients[1], topic, EARLIEST)[0] == 2, 30, "the other worker knows")
    for client in clients:
        assert found(client, topic, EARLIEST) == (2, -1)
        assert found(client, topic, LATEST) == (4, -1)
        assert list_offset(client, topic, LATEST).leader_epoch == 0
        assert list_offset(client, topic, LATEST, version=1).offset == 4


def test_tiered_storage_is_answered_as_where_there_is_none(
    client: RawClient, topic: str, now: int
) -> None:
    produce(client, topic, [now, now])
    delete_records(client, topic, 1)
    local = list_offset(client, topic, EARLIEST_LOCAL, version=8)
    assert (local.error_code, local.offset) == (0, 1)
    for wanted, version in ((LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)):
        answer = list_offset(client, topic, wanted, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, *NOTHING)
        assert answer.leader_epoch == -1


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
        (-100, 11),
    ],
)
def test_what_the_version_does_not_know_is_refused(
    client: RawClient, topic: str, timestamp: int, version: int
) -> None:
    answer = list_offset(client, topic, timestamp, version=version)
    assert (answer.error_code, answer.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


def test_an_unknown_partition(client: RawClient, topic: str) -> None:
    for name, partition in ((topic, 1), (topic, -1), ("no-such-topic", 0)):
        answer = list_offset(client, name, LATEST, partition=partition)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.offset == -1


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.values())
def test_by_timestamp(clients: list[RawClient], topic: str, now: int, codec: int) -> None:
    produce(clients[0], topic, [now, now + 10, now + 20], codec)
    produce(clients[0], topic, [now + 30, now + 40], codec)
    for client in clients:
        assert found(client, topic, now - 1000) == (0, now), "before"
        assert found(client, topic, 0) == (0, now)
        assert found(client, topic, now) == (0, now), "exactly"
        assert found(client, topic, now + 1) == (1, now + 10), "between records"
        assert found(client, topic, now + 20) == (2, now + 20)
        assert found(client, topic, now + 21) == (3, now + 30), "between batches"
        assert found(client, topic, now + 40) == (4, now + 40)
        assert found(client, topic, now + 41) == NOTHING, "after"
        assert found(client, topic, MAX_TIMESTAMP) == (4, now + 40)


def test_timestamps_out_of_order(client: RawClient, topic: str, now: int) -> None:
    """The first record by offset that is new enough, wherever newer ones are."""
    produce(client, topic, [now + 50, now + 10])
    produce(client, topic, [now + 20])
    produce(client, topic, [now + 60, now + 60, now])
    produce(client, topic, [now + 30])
    assert found(client, topic, now + 5) == (0, now + 50)
    assert found(client, topic, now + 51) == (3, now + 60)
    assert found(client, topic, now + 61) == NOTHING
    assert found(client, topic, MAX_TIMESTAMP) == (3, now + 60), "the first of equals"


def test_the_log_can_begin_inside_a_batch(clients: list[RawClient], topic: str, now: int) -> None:
    produce(clients[0], topic, [now + 90, now + 10, now + 20, now + 5])
    produce(clients[0], topic, [now + 15])
    assert delete_records(clients[0], topic, 1).error_code == 0
    for client in clients:
        wait_until(lambda c=client: found(c, topic, EARLIEST)[0] == 1, 30, "the start is known")  # type: ignore[misc]
        assert found(client, topic, 0) == (1, now + 10)
        assert found(client, topic, now + 11) == (2, now + 20)
        assert found(client, topic, now + 21) == NOTHING, "the newest one is deleted"
        assert found(client, topic, MAX_TIMESTAMP) == (2, now + 20)
    assert delete_records(clients[0], topic, 3).error_code == 0
    assert found(clients[0], topic, now + 6) == (4, now + 15)
    assert found(clients[0], topic, MAX_TIMESTAMP) == (4, now + 15)
    assert delete_records(clients[0], topic, 5).error_code == 0
    assert found(clients[0], topic, 0) == NOTHING
    assert found(clients[0], topic, MAX_TIMESTAMP) == NOTHING


def test_append_time_is_the_time_that_counts(client: RawClient, now: int) -> None:
    name = next(_names)
    create_topic(client, name, {"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    produce(client, name, [now, now + 1])
    offset, when = found(client, name, before)
    assert offset == 0
    assert when >= before
    assert found(client, name, MAX_TIMESTAMP) == (0, when)
    assert found(client, name, when + 1) == NOTHING


@pytest.mark.parametrize("jitter", [0, 400], ids=["in order", "out of order"])
def test_several_mib(moldau: Broker, clients: list[RawClient], now: int, jitter: int) -> None:
    """The index takes a look-up near the answer: it does not read the whole log for it."""
    name, rng = next(_names), random.Random(jitter)
    create_topic(clients[0], name)
    value = rng.randbytes(8000)
    timestamps: list[int] = []
    for number in range(160):  # 10 MiB
        times = [now + 100 * (8 * number + i) + rng.randint(0, jitter) for i in range(8)]
        batch = make_batch([(b"key", value, when) for when in times])
        assert clients[0].produce(name, batch).error_code == 0
        timestamps += times
    with redis.from_url(moldau.store_url) as store:
        stored = StoredLog(store, name)
        assert 8 <= len(stored.index_points()) <= 11
        for client in clients:
            for wanted in rng.choices(range(now - 50, max(timestamps) + 1), k=40):
                first = next(i for i, when in enumerate(timestamps) if when >= wanted)
                assert found(client, name, wanted) == (first, timestamps[first])
            newest = max(timestamps)
            assert found(client, name, MAX_TIMESTAMP) == (timestamps.index(newest), newest)
            assert found(client, name, newest + 1) == NOTHING

        before = store.info("stats")["total_net_output_bytes"]
        for wanted in timestamps[100::200]:
            list_offset(clients[0], name, wanted)
        read = store.info("stats")["total_net_output_bytes"] - before
        lookups = len(timestamps[100::200])
        assert read / lookups < 4 << 20, "bytes the store had to hand out for a look-up"
