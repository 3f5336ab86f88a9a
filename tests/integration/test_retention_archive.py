"""Topics with remote.storage.enable: trimmed by local retention, never beyond what a lake has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.archive.commit_offsets import commit_archived_offsets
from moldau.ops.pipeline.source.fetch import FetchSettings, connect
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import EARLIEST, create_topic, list_offset, read_all, worker_clients
from tests.support.raw.client import RawClient, make_batch

QUICK = {"log.retention.check.interval.ms": 200, "remote.log.storage.system.enable": "true"}
HOUR_MS = 3_600_000
PATIENCE_S = 60.0
TIERED = {"remote.storage.enable": "true", "local.retention.ms": HOUR_MS}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, broker=QUICK) as started:
        yield started


@pytest.fixture
def client(clients: list[RawClient]) -> RawClient:
    return clients[0]


def produce_old(client: RawClient, topic: str, batches: int) -> None:
    """Batches of ten records that are two hours old, each an entry of its own."""
    when = time.time_ns() // 1_000_000 - 2 * HOUR_MS
    for _ in range(batches):
        batch = make_batch([(b"key", os.urandom(50), when)] * 10)
        assert client.produce(topic, batch).error_code == 0


def start_of(client: RawClient, topic: str) -> int:
    return list_offset(client, topic, EARLIEST).offset


def archived(broker: Broker, topic: str, until: int, topic_id: bytes | None = None) -> None:
    """Say it as the archiver does."""
    settings = FetchSettings((("127.0.0.1", broker.port),))
    if topic_id is None:
        with connect(settings) as cluster:
            topic_id = cluster.topics([topic])[topic].topic_id
    commit_archived_offsets(
        settings, {TopicPartition(topic, 0): until}, {topic: topic_id}, "/a/lake"
    )


def waits_for_the_archiver(broker: Broker, topic: str, below: int) -> bool:
    """It has looked at this log, and let it be."""
    return any(
        topic in line and f"the lake has them only below {below}" in line
        for line in broker.log().splitlines()
    )


def test_nothing_goes_before_it_is_archived_then_just_that(
    broker: Broker, client: RawClient
) -> None:
    create_topic(client, "tiered", TIERED)
    produce_old(client, "tiered", 10)
    wait_until(lambda: waits_for_the_archiver(broker, "tiered", 0), PATIENCE_S, "it was looked at")
    assert start_of(client, "tiered") == 0
    assert len(read_all(client, "tiered")) == 100

    archived(broker, "tiered", 47)  # inside an entry, which stays as a whole
    wait_until(lambda: start_of(client, "tiered") == 40, PATIENCE_S, "what is archived is gone")
    assert read_all(client, "tiered", 40)[0].offset == 40

    archived(broker, "tiered", 100)
    wait_until(lambda: start_of(client, "tiered") == 100, PATIENCE_S, "all of it is gone")


def test_by_size_too(broker: Broker, client: RawClient) -> None:
    create_topic(
        client, "tiered-size",
        {"remote.storage.enable": "true", "local.retention.bytes": 1500},
    )  # fmt: skip
    produce_old(client, "tiered-size", 10)
    archived(broker, "tiered-size", 30)
    wait_until(lambda: start_of(client, "tiered-size") == 30, PATIENCE_S, "what is archived goes")
    archived(broker, "tiered-size", 100)
    wait_until(lambda: start_of(client, "tiered-size") > 30, PATIENCE_S, "surplus goes")
    kept = read_all(client, "tiered-size", start_of(client, "tiered-size"))
    assert kept[-1].offset == 99
    assert len(kept) == 30  # entries of about 690 bytes: two would be less than 1500


def test_what_another_topic_of_that_name_had_archived_does_not_count(
    broker: Broker, client: RawClient
) -> None:
    create_topic(client, "tiered-again", TIERED)
    archived(broker, "tiered-again", 100, topic_id=bytes(range(16)))
    produce_old(client, "tiered-again", 5)
    wait_until(
        lambda: waits_for_the_archiver(broker, "tiered-again", 0), PATIENCE_S, "it was looked at"
    )
    assert start_of(client, "tiered-again") == 0


def test_what_is_archived_survives_the_workers(broker: Broker, client: RawClient) -> None:
    create_topic(client, "tiered-kept", TIERED)
    archived(broker, "tiered-kept", 20)
    for index in range(2):
        broker.wait_restarted("worker", index, broker.kill("worker", index))
    with worker_clients(broker) as clients:
        produce_old(clients[0], "tiered-kept", 5)
        wait_until(
            lambda: start_of(clients[0], "tiered-kept") == 20, PATIENCE_S, "what is archived goes"
        )
        assert len(read_all(clients[0], "tiered-kept", 20)) == 30
