"""OffsetForLeaderEpoch: API key 23, versions 2 to 4."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Int64, Message, String


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message):
    replica_id: Annotated[Int32, F(since=3)] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: String = ""
    partitions: list[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
