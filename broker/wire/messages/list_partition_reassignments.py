"""ListPartitionReassignments: API key 46, versions 0 to 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Message, String


class ListPartitionReassignmentsTopics(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class ListPartitionReassignmentsRequest(Message):
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


class OngoingTopicReassignment(Message):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = []
