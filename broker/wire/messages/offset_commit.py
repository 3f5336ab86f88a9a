"""OffsetCommit: API key 8, versions 2 to 10."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, F, Int16, Int32, Int64, Message, String, Uuid


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, F(since=6)] = -1
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[String, F(until=9)] = ""
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message):
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, F(since=7)] = None
    retention_time_ms: Annotated[Int64, F(until=4)] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[String, F(until=9)] = ""
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=3)] = 0
    topics: list[OffsetCommitResponseTopic] = []
