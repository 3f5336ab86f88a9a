"""TxnOffsetCommit: API key 28, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Int64, Message, String


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, F(since=2)] = -1
    committed_metadata: String | None = ""


class TxnOffsetCommitRequestTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message):
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, F(since=3)] = -1
    member_id: Annotated[String, F(since=3)] = ""
    group_instance_id: Annotated[String | None, F(since=3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
