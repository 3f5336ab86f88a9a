"""ConsumerGroupDescribe: API key 69, versions 0 to 1."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moldau.broker.wire.schema import Bool, F, Int8, Int16, Int32, Message, String, Uuid


class ConsumerGroupDescribeRequest(Message):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class TopicPartitions(Message):
    topic_id: Uuid = bytes(16)
    topic_name: String = ""
    partitions: list[Int32] = []


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class Member(Message):
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    assignment: Assignment = msgspec.field(default_factory=Assignment)
    target_assignment: Assignment = msgspec.field(default_factory=Assignment)
    member_type: Annotated[Int8, F(since=1)] = -1


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = []
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
