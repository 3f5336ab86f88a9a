"""A group of either protocol as the command line looks at it."""

from __future__ import annotations

from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.consumer_protocol import CONSUMER, assigned_partitions
from moldau.broker.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    Member,
)
from moldau.broker.wire.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from moldau.ops.client import Cluster, TopicPartition, refusal

CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
CLASSIC_MEMBER = 0


class FoundMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: list[TopicPartition] | None
    """None: of another protocol type."""
    epoch: int | None
    """Of the consumer protocol."""
    is_classic: bool


class FoundGroup(NamedTuple):
    group_state: str
    type: str
    protocol_type: str
    protocol: str
    """What is used to assign partitions."""
    epoch: int | None
    """Of the consumer protocol; the generation of a classic group is not reported."""
    members: list[FoundMember]


def find_group(cluster: Cluster, group_id: str) -> FoundGroup | None:
    """None: there is no such group."""
    answer = cluster.call_coordinator(
        group_id, DescribeGroupsRequest([group_id]), lambda answer: int(answer.groups[0].error_code)
    )
    group: DescribedGroup = answer.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return _find_consumer_group(cluster, group_id)
    if group.error_code:
        raise refusal(f"group {group_id}", group.error_code, group.error_message)
    is_consumer = group.protocol_type == CONSUMER
    return FoundGroup(
        group.group_state,
        CLASSIC_TYPE,
        group.protocol_type,
        group.protocol_data,
        None,
        [_classic_member(one, is_consumer=is_consumer) for one in group.members],
    )


def _find_consumer_group(cluster: Cluster, group_id: str) -> FoundGroup | None:
    answer = cluster.call_coordinator(
        group_id,
        ConsumerGroupDescribeRequest([group_id]),
        lambda answer: int(answer.groups[0].error_code),
    )
    group: ConsumerGroup = answer.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if group.error_code:
        raise refusal(f"group {group_id}", group.error_code, group.error_message)
    return FoundGroup(
        group.group_state,
        CONSUMER_TYPE,
        CONSUMER,
        group.assignor_name,
        group.group_epoch,
        [_consumer_member(one) for one in group.members],
    )


def _classic_member(one: DescribedGroupMember, *, is_consumer: bool) -> FoundMember:
    assigned = assigned_places(one.member_assignment) if is_consumer else None
    host = one.client_host.removeprefix("/")
    return FoundMember(
        one.member_id, one.group_instance_id, one.client_id, host, assigned, None, True
    )


def _consumer_member(one: Member) -> FoundMember:
    return FoundMember(
        one.member_id,
        one.instance_id,
        one.client_id,
        one.client_host.removeprefix("/"),
        [
            TopicPartition(topic.topic_name, number)
            for topic in one.assignment.topic_partitions
            for number in topic.partitions
        ],
        one.member_epoch,
        one.member_type == CLASSIC_MEMBER,
    )


def assigned_places(assignment: bytes) -> list[TopicPartition] | None:
    """The partitions of a ConsumerProtocolAssignment; None: it is something else."""
    found = assigned_partitions(assignment)
    return None if found is None else [TopicPartition(*one) for one in found]
