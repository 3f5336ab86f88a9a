"""ListOffsets: API key 2, versions 1 to 11."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int8, Int16, Int32, Int64, Message, String


class ListOffsetsPartition(Message):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, F(since=4)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Message):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Message):
    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, F(since=2)] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, F(since=10)] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, F(since=4)] = -1


class ListOffsetsTopicResponse(Message):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=2)] = 0
    topics: list[ListOffsetsTopicResponse] = []
