"""Requests that name thousands of topics that do not exist: one question for all, not for each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis as redis_py

from moldau.broker.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.broker.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.broker.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from moldau.broker.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.broker.wire.schema import Message
from tests.support.brokers.running import Broker
from tests.support.raw.client import RawClient

MANY = 3000
NAMES = [f"nowhere-{os.getpid()}-{number}" for number in range(MANY)]
IDS = [os.urandom(16) for _ in range(MANY)]

REQUESTS: dict[str, tuple[Message, int | None]] = {
    "Fetch by id": (
        FetchRequest(topics=[FetchTopic("", each, [FetchPartition()]) for each in IDS]),
        None,
    ),
    "Fetch by name": (
        FetchRequest(topics=[FetchTopic(each, bytes(16), [FetchPartition()]) for each in NAMES]),
        12,
    ),
    "ListOffsets": (
        ListOffsetsRequest(
            topics=[ListOffsetsTopic(each, [ListOffsetsPartition(0)]) for each in NAMES]
        ),
        None,
    ),
    "OffsetForLeaderEpoch": (
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(each, [OffsetForLeaderPartition()]) for each in NAMES]
        ),
        None,
    ),
    "DeleteRecords": (
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(each, [DeleteRecordsPartition()]) for each in NAMES]
        ),
        None,
    ),
    "DescribeProducers": (
        DescribeProducersRequest([TopicRequest(each, [0]) for each in NAMES]),
        None,
    ),
    "ElectLeaders": (
        ElectLeadersRequest(topic_partitions=[TopicPartitions(each, [0]) for each in NAMES]),
        None,
    ),
    "CreatePartitions": (
        CreatePartitionsRequest([CreatePartitionsTopic(each, 2, None) for each in NAMES]),
        None,
    ),
    "AlterPartitionReassignments": (
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(each, [ReassignablePartition(0, [0])]) for each in NAMES]
        ),
        None,
    ),
    "DescribeTopicPartitions": (
        DescribeTopicPartitionsRequest([DescribedTopic(each) for each in NAMES]),
        None,
    ),
    "Metadata by name": (
        MetadataRequest(
            [MetadataRequestTopic(name=each) for each in NAMES], allow_auto_topic_creation=False
        ),
        None,
    ),
    "Metadata by id": (
        MetadataRequest(
            [MetadataRequestTopic(topic_id=each) for each in IDS], allow_auto_topic_creation=False
        ),
        None,
    ),
    "OffsetCommit": (
        OffsetCommitRequest(
            "many",
            topics=[
                OffsetCommitRequestTopic("", each, [OffsetCommitRequestPartition()]) for each in IDS
            ],
        ),
        10,
    ),
    "OffsetFetch": (
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    f"many-{at}", topics=[OffsetFetchRequestTopics("", each, [0])]
                )
                for at, each in enumerate(IDS)
            ]
        ),
        10,
    ),
}


@pytest.fixture
def client(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(moldau.port + 1, timeout=90) as made:
        yield made


@pytest.mark.parametrize("what", REQUESTS)
def test_the_store_is_asked_a_few_times(moldau: Broker, client: RawClient, what: str) -> None:
    request, version = REQUESTS[what]
    store = redis_py.Redis.from_url(moldau.store_url)

    def asked() -> int:
        stats = store.info("commandstats")
        assert isinstance(stats, dict)
        commands = ("hget", "hmget", "hvals", "hgetall", "eval", "evalsha")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in commands)

    before = asked()
    client.call(request, version)
    assert asked() - before < MANY / 10
