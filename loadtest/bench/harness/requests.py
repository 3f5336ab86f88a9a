"""The requests that benchmarks send: their versions, and their frames, which are encoded once.

The versions are those that Apache Kafka 3.2 and later serve, so that any broker can be measured.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moldau.broker.wire.frame import read_response, request_frame
from moldau.broker.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.broker.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.broker.wire.messages.create_partitions import CreatePartitionsRequest
from moldau.broker.wire.messages.create_topics import CreateTopicsRequest
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.join_group import JoinGroupRequest
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest
from moldau.broker.wire.messages.list_offsets import ListOffsetsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.offset_commit import OffsetCommitRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.messages.sync_group import SyncGroupRequest
from moldau.broker.wire.schema import Message
from moldau.ops.client import API_OF

CLIENT_ID = "bench"
CORRELATION_ID = 1  # of every frame: a frame that is sent again and again has one

VERSIONS: dict[type[Message], int] = {
    ProduceRequest: 9,
    FetchRequest: 12,
    ListOffsetsRequest: 5,
    MetadataRequest: 9,
    OffsetCommitRequest: 8,
    FindCoordinatorRequest: 3,
    JoinGroupRequest: 9,
    HeartbeatRequest: 4,
    LeaveGroupRequest: 5,
    SyncGroupRequest: 5,
    CreateTopicsRequest: 5,
    CreatePartitionsRequest: 2,
    DeleteTopicsRequest: 5,
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    EndTxnRequest: 3,
    IncrementalAlterConfigsRequest: 1,
    ConsumerGroupHeartbeatRequest: 1,
}
RequestTypes = Collection[type[Message]]
# To create a topic, find its leaders and its end, and delete it.
TOPIC_REQUESTS: RequestTypes = (
    CreateTopicsRequest,
    MetadataRequest,
    ListOffsetsRequest,
    DeleteTopicsRequest,
)


def encode(request: Message, client_id: str = CLIENT_ID, version: int | None = None) -> bytes:
    api = API_OF[type(request)]
    if version is None:
        version = VERSIONS[type(request)]
    return bytes(request_frame(api, version, CORRELATION_ID, client_id, request))


def decode(request: type[Message], frame: bytes, version: int | None = None) -> Any:
    """The response to a request of this type, from a frame without its length."""
    if version is None:
        version = VERSIONS[request]
    return read_response(API_OF[request], version, frame)[1]


def produce_request(
    topic: str, partition: int, batch: bytes, transactional_id: str | None = None
) -> ProduceRequest:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])
    return ProduceRequest(transactional_id, -1, 30_000, [data])


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    max_wait_ms: int = 500,
    isolation_level: int = 0,
) -> FetchRequest:
    wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic, partitions=[wanted])],
    )
