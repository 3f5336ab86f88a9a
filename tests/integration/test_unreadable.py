"""A batch in the log that cannot be read: everything but its own records is served."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from moldau.broker.wire.batch import read_header
from tests.support.brokers.compacting import COMPACT, compacting_broker, produce, wait_compacted
from tests.support.brokers.running import Broker
from tests.support.raw.calls import (
    LATEST,
    MAX_TIMESTAMP,
    StoredLog,
    alter_topic,
    create_topic,
    list_offset,
)
from tests.support.raw.client import RawClient, batches_in, make_batch
from tests.support.raw.unreadable import KINDS, RECORDS, plant, unreadable_batches

NOW = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with compacting_broker() as started:
        yield started


def warnings(broker: Broker, topic: str) -> list[str]:
    return [line for line in broker.log().splitlines() if f"{topic}-0: the batch at" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_is_looked_up_past_it(
    broker: Broker, clients: list[RawClient], store: redis.Redis, kind: str
) -> None:
    topic = f"times-{kind}"
    create_topic(clients[0], topic)
    bad = unreadable_batches(NOW + 100)[kind]
    good = [make_batch([(b"a", b"1", NOW + number * 200)] * 2) for number in range(2)]
    assert plant(store, topic, [good[0], bad, good[1]]) == 4 + RECORDS
    after = 2 + RECORDS
    # With a wrong count the first record is found before the batch turns out to be damaged.
    first = 2 if kind in ("few", "many") else after
    for client in clients:
        for _ in range(2):
            found = [list_offset(client, topic, NOW + later) for later in (0, 50, 150, 300)]
            assert [one.error_code for one in found] == [0] * 4
            assert [one.offset for one in found] == [0, first, after, -1]
            assert list_offset(client, topic, MAX_TIMESTAMP).offset == after
            assert list_offset(client, topic, LATEST).offset == 4 + RECORDS
    if first == after:
        assert 1 <= len(warnings(broker, topic)) <= len(clients)
        assert "offset 2 cannot be read" in warnings(broker, topic)[0]


def test_the_newest_of_a_log_may_be_unreadable(
    clients: list[RawClient], store: redis.Redis
) -> None:
    create_topic(clients[0], "newest")
    bad = unreadable_batches(NOW + 100)["gzip"]
    plant(store, "newest", [make_batch([(b"a", b"1", NOW)]), bad])
    for client in clients:
        found = list_offset(client, "newest", MAX_TIMESTAMP)
        assert (found.error_code, found.offset, found.timestamp) == (0, 1, NOW + 100)
        assert list_offset(client, "newest", NOW + 50).offset == -1


def test_compaction_keeps_it_and_goes_on(
    broker: Broker, clients: list[RawClient], store: redis.Redis
) -> None:
    topic = "kept"
    create_topic(clients[0], topic, {"cleanup.policy": "delete"})
    bad = unreadable_batches(NOW)
    old = make_batch([(b"a", b"1", NOW)])
    end = plant(store, topic, [old, *bad.values(), make_batch([(b"a", b"2", NOW)])])
    stored = [bytes(batch) for batch in bad.values()]
    alter_topic(clients[0], topic, COMPACT)
    for number in range(3):
        produce(clients[0], topic, ("a", f"{number}"))
        wait_compacted(StoredLog(store, topic), end + number)
    offset, found = 0, []
    while batches := batches_in(clients[0].fetch(topic, offset)):
        found += [bytes(batch) for batch in batches]
        offset = read_header(batches[-1]).next_offset
    assert found[: len(stored)] == stored
    assert [read_header(one).base_offset for one in found[len(stored) :]] == [end + 2]
    assert len(warnings(broker, topic)) == len(KINDS)
