"""AlterPartitionReassignments: API key 45, versions 0 to 1."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int16, Int32, Message, String


class ReassignablePartition(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Message):
    name: String = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, F(since=1)] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReassignableTopicResponse(Message):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, F(since=1)] = True
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = []
