"""ShareAcknowledge: API key 79, versions 1 to 2."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moldau.broker.wire.schema import (
    Bool,
    F,
    Int8Array,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
)


class AcknowledgementBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: Int8Array = b""


class AcknowledgePartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgeTopic(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(Message):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, F(since=2)] = False
    topics: list[AcknowledgeTopic] = []


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = msgspec.field(default_factory=LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareAcknowledgeResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, F(since=2)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
