"""DescribeTopicPartitions: API key 75, versions 0 to 0."""

from __future__ import annotations

from moldau.broker.wire.schema import NO_UUID, Bool, Int16, Int32, Message, String, Uuid


class TopicRequest(Message):
    name: String = ""


class CursorInRequest(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Message):
    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: CursorInRequest | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = -2147483648


class CursorInResponse(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: CursorInResponse | None = None
