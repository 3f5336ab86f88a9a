"""ConsumerGroupHeartbeat: API key 68, versions 0 to 1."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int16, Int32, Message, String, Uuid


class TopicPartitions(Message):
    topic_id: Uuid = bytes(16)
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Message):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, F(since=1)] = None
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
