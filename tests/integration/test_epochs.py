"""Leader epochs on the wire (KIP-320), of a log that lost its end: 0 to 5 are there, 1000 to 1003
follow in epoch 1, and what was between is a gap."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from moldau.broker.errors import ErrorCode
from moldau.broker.store import keys
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    create_topic,
    delete_records,
    list_offset,
    read_all,
    worker_clients,
)
from tests.support.raw.client import NAMED_FETCH, RawClient, make_batch, records_in
from tests.support.stores.gaps import fill_with_gap

EXISTING = [*range(6), *range(1000, 1004)]
FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
PATIENCE_S = 30
_names = (f"epochs-{number}" for number in itertools.count())


@pytest.fixture
def clients(moldau: Broker) -> Iterator[list[RawClient]]:
    with worker_clients(moldau) as made:
        yield made


@pytest.fixture
def client(clients: list[RawClient]) -> RawClient:
    return clients[0]


@pytest.fixture
def store(moldau: Broker) -> Iterator[Any]:
    with redis.from_url(moldau.store_url) as made:
        yield made


@pytest.fixture
def topic(client: RawClient, store: Any) -> str:
    name = next(_names)
    create_topic(client, name)
    fill_with_gap(store, name)
    return name


def shown(client: RawClient, topic: str) -> set[int]:
    """The epoch as Metadata and DescribeTopicPartitions show it."""
    by_name = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    described = client.call(DescribeTopicPartitionsRequest([TopicRequest(topic)], 100))
    everything = client.call(MetadataRequest(topics=None)).topics
    return {
        client.call(by_name).topics[0].partitions[0].leader_epoch,
        *(found.partitions[0].leader_epoch for found in everything if found.name == topic),
        described.topics[0].partitions[0].leader_epoch,
    }


def fetch(
    client: RawClient,
    topic: str,
    offset: int,
    epoch: int = -1,
    fetched: int = -1,
    *,
    wait_ms: int = 0,
    version: int = NAMED_FETCH,
) -> FetchResponse:
    wanted = FetchPartition(
        0, epoch, offset, last_fetched_epoch=fetched, partition_max_bytes=1 << 20
    )
    named = FetchTopic(topic, partitions=[wanted])
    if version > NAMED_FETCH:
        asked = MetadataRequest([MetadataRequestTopic(name=topic)])
        named = FetchTopic("", client.call(asked).topics[0].topic_id, [wanted])
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[named])
    answer: FetchResponse = client.call(request, version)
    return answer


def end_of_epoch(
    client: RawClient, topic: str, epoch: int, current: int = -1
) -> tuple[int, int, int]:
    wanted = OffsetForLeaderPartition(0, current, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic, [wanted])])
    answer: EpochEndOffset = client.call(request).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_every_worker_shows_it_without_having_read_the_log(
    clients: list[RawClient], topic: str
) -> None:
    for client in clients:
        wait_until(lambda: shown(client, topic) == {1}, PATIENCE_S, "the change was announced")  # noqa: B023


def test_one_that_was_not_announced_is_found_with_the_log(
    clients: list[RawClient], store: Any
) -> None:
    topic = next(_names)
    create_topic(clients[0], topic)
    key = fill_with_gap(store, topic, announced=False)
    assert shown(clients[0], topic) == {0}
    assert len(read_all(clients[0], topic)) == len(EXISTING)
    for client in clients:
        wait_until(lambda: shown(client, topic) == {1}, PATIENCE_S, "it is announced")  # noqa: B023
    assert store.hget(keys.EPOCHS, key) == b"1"


def test_it_goes_with_its_topic(clients: list[RawClient], topic: str, store: Any) -> None:
    for client in clients:
        wait_until(lambda: shown(client, topic) == {1}, PATIENCE_S, "the change was announced")  # noqa: B023
    clients[0].call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)]))
    assert not store.hexists(keys.EPOCHS, keys.stream(topic, 0, 0))
    create_topic(clients[0], topic)
    for client in clients:
        assert shown(client, topic) == {0}
        assert fetch(client, topic, 0, epoch=0).responses[0].partitions[0].error_code == 0


def test_5_what_is_read_and_appended(clients: list[RawClient], topic: str) -> None:
    for client in clients:
        for offset in (0, 4, 6, 7, 999, 1000, 1002):
            seen = [record.offset for record in read_all(client, topic, offset)]
            assert seen == [at for at in EXISTING if at >= offset]
    now_ms = time.time_ns() // 1_000_000
    answer = clients[1].produce(topic, make_batch([(None, b"more", now_ms)]))
    assert (answer.error_code, answer.base_offset) == (0, 1004)
    assert [record.offset for record in read_all(clients[0], topic, 500)][-1] == 1004


def test_5_list_offsets_tells_the_epoch_of_the_record(client: RawClient, topic: str) -> None:
    def found(timestamp: int) -> tuple[int, int]:
        answer = list_offset(client, topic, timestamp)
        assert answer.error_code == 0
        return answer.offset, answer.leader_epoch

    assert found(EARLIEST) == (0, 0)
    assert found(LATEST) == (1004, 1)
    assert found(45) == (5, 0)
    assert found(51) == (1000, 1)
    assert found(MAX_TIMESTAMP) == (1003, 1)
    assert found(20_000) == (-1, -1)
    assert delete_records(client, topic, 6).low_watermark == 6
    assert found(EARLIEST) == (6, 1), "what is read there is of the new epoch"


@pytest.mark.parametrize(("epoch", "error"), [(-1, 0), (0, FENCED), (1, 0), (2, UNKNOWN)])
def test_5_the_current_epoch_is_checked(
    clients: list[RawClient], topic: str, epoch: int, error: int
) -> None:
    for client in clients:
        answer = fetch(client, topic, 2, epoch).responses[0].partitions[0]
        assert answer.error_code == error
        assert bool(records_in(answer, 2)) == (error == 0)
        wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(0, epoch, EARLIEST)])
        answers = client.call(ListOffsetsRequest(replica_id=-1, topics=[wanted])).topics
        assert answers[0].partitions[0].error_code == error
        assert end_of_epoch(client, topic, 0, epoch)[0] == error


@pytest.mark.parametrize("version", range(9, 19))
def test_5_a_fenced_fetch_does_not_wait(client: RawClient, topic: str, version: int) -> None:
    """Clients of v16 and above learn of the new epoch right away (KIP-951)."""
    began = time.monotonic()
    response = fetch(client, topic, 1004, 0, wait_ms=30_000, version=version)
    assert time.monotonic() - began < 20
    answer = response.responses[0].partitions[0]
    assert answer.error_code == FENCED
    leader = answer.current_leader
    if version >= 16:
        assert leader is not None
        assert leader.leader_epoch == 1
        assert [node.node_id for node in response.node_endpoints] == [leader.leader_id]
    else:
        assert leader is None
        assert not response.node_endpoints


def test_5_a_fetch_in_the_gap_waits_for_what_comes_after_it(
    moldau: Broker, clients: list[RawClient], store: Any
) -> None:
    topic = next(_names)
    create_topic(clients[0], topic)
    fill_with_gap(store, topic, after=0)
    for client in clients:
        for offset in (6, 500, 999, 1000):
            answer = fetch(client, topic, offset).responses[0].partitions[0]
            assert (answer.error_code, answer.high_watermark) == (0, 1000)
            assert not answer.records
    wanted = FetchPartition(0, 1, 500, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic, partitions=[wanted])]
    )
    for client in clients:
        client.send(request, NAMED_FETCH)
    time.sleep(0.2)
    with RawClient(moldau.port) as writer:
        assert writer.produce(topic, make_batch([(None, b"new", 1)])).base_offset == 1000
    for client in clients:
        answer = client.receive().responses[0].partitions[0]
        assert [record.offset for record in records_in(answer)] == [1000]


def test_5_where_an_epoch_ended(client: RawClient, topic: str) -> None:
    assert end_of_epoch(client, topic, 0) == (0, 0, 6)
    assert end_of_epoch(client, topic, 1) == (0, 1, 1004)
    assert end_of_epoch(client, topic, 2) == (0, -1, -1)
    assert end_of_epoch(client, topic, -1) == (0, -1, -1)
    assert delete_records(client, topic, 8).low_watermark == 8
    assert end_of_epoch(client, topic, 0) == (0, 0, 8), "the log can be read there"


@pytest.mark.parametrize(
    ("offset", "fetched", "diverging", "error"),
    [
        (6, 0, None, 0),
        (7, 0, (0, 6), 0),
        (1000, 0, (0, 6), 0),
        (1002, 1, None, 0),
        (1002, 2, None, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_5_the_epoch_of_the_last_record_fetched(
    client: RawClient, topic: str, offset: int, fetched: int, diverging: Any, error: int
) -> None:
    """KIP-595: what a client has beyond it is not in the log."""
    (answer,) = fetch(client, topic, offset, 1, fetched, wait_ms=30_000).responses[0].partitions
    assert answer.error_code == error
    told = answer.diverging_epoch
    assert (None if told is None else (told.epoch, told.end_offset)) == diverging
    assert bool(answer.records) == (diverging is None and not error)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_librdkafka_consumer_goes_on(
    moldau: Broker, clients: list[RawClient], topic: str, reset: str
) -> None:
    """It committed an offset that was lost since: it misses nothing, and reads nothing twice."""
    for client in clients:
        wait_until(lambda: shown(client, topic) == {1}, PATIENCE_S, "the change was announced")  # noqa: B023
    consumer = Consumer(
        {
            "bootstrap.servers": moldau.bootstrap,
            "group.id": f"{topic}-group",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.commit(offsets=[Partition(topic, 0, 9, leader_epoch=0)], asynchronous=False)
        (committed,) = consumer.committed([Partition(topic, 0)], timeout=PATIENCE_S)
        assert (committed.offset, committed.leader_epoch) == (9, 0)
        consumer.assign([committed])
        seen: list[int | None] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < 4 and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None
                seen.append(message.offset())
        assert seen == [1000, 1001, 1002, 1003]
    finally:
        consumer.close()


async def test_a_client_without_kip_320_goes_on(moldau: Broker, topic: str) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=moldau.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 9)
        seen = [(await consumer.getone()).offset for _ in range(4)]
        assert seen == [1000, 1001, 1002, 1003]
    finally:
        await consumer.stop()
