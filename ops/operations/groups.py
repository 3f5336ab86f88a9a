"""Consumer groups of a running broker: list, describe and delete them, read their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.metrics.document import GroupRow
from moldau.broker.wire.consumer_protocol import CONSUMER, assigned_partitions
from moldau.broker.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    Member,
)
from moldau.broker.wire.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.ops.client import LATEST, Cluster, TopicPartition, refusal
from moldau.ops.client.names import Coordinator
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.lag import LagCounter

CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
CLASSIC_MEMBER = 0


class GroupListing(msgspec.Struct, frozen=True):
    group: str
    state: str
    type: str
    protocol_type: str
    coordinator: Coordinator


class GroupMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]] | None  # None: of another protocol type
    epoch: int | None
    protocol: str


class FoundGroup(NamedTuple):
    """A group of either protocol, as its coordinator describes it."""

    group_state: str
    type: str
    protocol_type: str
    protocol: str  # what assigns partitions
    epoch: int | None  # of the consumer protocol; DescribeGroups has no generation
    members: list[GroupMember]


class Committed(NamedTuple):
    offset: int
    metadata: str


class GroupPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    metadata: str | None
    member_id: str | None
    client_id: str | None
    host: str | None
    native: bool


class GroupDescription(msgspec.Struct, frozen=True):
    group: str
    identity: str | None
    state: str
    type: str
    generation: int | None
    protocol_type: str
    protocol: str
    coordinator: Coordinator
    total_lag: int | None
    members: list[GroupMember]
    partitions: list[GroupPartition]


def list_groups(cluster: Cluster, states: Sequence[str] = ()) -> list[GroupListing]:
    """The groups of all brokers, by name; `states`: only groups in one of these."""
    found = {}
    for node in cluster.nodes():
        answer = cluster.call(ListGroupsRequest(list(states)), node)
        if answer.error_code:
            raise refusal(f"groups of broker {node.node_id}", answer.error_code)
        for one in answer.groups:
            found[one.group_id] = GroupListing(
                one.group_id,
                one.group_state,
                one.group_type,
                one.protocol_type,
                Coordinator.of(node),
            )
    return [found[group_id] for group_id in sorted(found)]


def delete_group(cluster: Cluster, group_id: str) -> None:
    """Raises ClientError."""
    (result,) = cluster.call_coordinator(
        group_id,
        DeleteGroupsRequest([group_id]),
        lambda answer: int(answer.results[0].error_code),
    ).results
    if result.error_code:
        raise refusal(f"group {group_id}", result.error_code)


def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, Committed]:
    """Everything the group has committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)])
    answer = cluster.call_coordinator(
        group_id, request, lambda answer: int(answer.groups[0].error_code)
    ).groups[0]
    if answer.error_code:
        raise refusal(f"group {group_id}", answer.error_code)
    found = {}
    for topic in answer.topics:
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            if one.error_code:
                raise refusal(f"group {group_id}, partition {place}", one.error_code)
            if one.committed_offset >= 0:
                found[place] = Committed(one.committed_offset, one.metadata or "")
    return found


# --- describing ---


def describe_group(
    cluster: Cluster, workers: LocalWorkers, counter: LagCounter, group_id: str
) -> GroupDescription:
    """Raises ClientError."""
    group = find_group(cluster, group_id)
    if group is None:
        raise refusal(f"group {group_id}", ErrorCode.GROUP_ID_NOT_FOUND)
    committed = committed_offsets(cluster, group_id)
    members = sorted(group.members, key=lambda one: (one.client_id, one.member_id))
    owners = {
        TopicPartition(topic, number): member
        for member in members
        for topic, numbers in (member.assignment or {}).items()
        for number in numbers
    }
    places = sorted(committed.keys() | owners.keys())
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    natives = counter.native_among(place.topic for place in ends)
    lags = counter.lags(
        group_id,
        {place: (one.offset, ends[place]) for place, one in committed.items() if place in ends},
    )
    known = [lags.get(place) for place in committed]
    coordinator = cluster.coordinator(group_id)
    row = _reported(workers, coordinator.node_id, group_id)
    return GroupDescription(
        group_id,
        None if row is None else row.identity or None,
        group.group_state,
        group.type,
        group.epoch if row is None else row.generation,
        group.protocol_type,
        group.protocol,
        Coordinator.of(coordinator),
        None if None in known or not known else sum(lag or 0 for lag in known),
        members,
        [
            _partition(
                place,
                committed.get(place),
                ends.get(place),
                lags.get(place),
                owners.get(place),
                is_native=place in ends and place.topic in natives,
            )
            for place in places
        ],
    )


def _reported(workers: LocalWorkers, node_id: int, group_id: str) -> GroupRow | None:
    """Identity and generation, which Kafka's protocol has no field for."""
    document = workers.document(node_id)
    rows = () if document is None else document.groups
    return next((row for row in rows if row.group == group_id), None)


def _partition(
    place: TopicPartition,
    committed: Committed | None,
    end: int | None,
    lag: int | None,
    owner: GroupMember | None,
    *,
    is_native: bool,
) -> GroupPartition:
    return GroupPartition(
        place.topic,
        place.partition,
        None if committed is None else committed.offset,
        end,
        lag,
        None if committed is None else committed.metadata,
        None if owner is None else owner.member_id,
        None if owner is None else owner.client_id,
        None if owner is None else owner.host,
        is_native,
    )


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


def _classic_member(one: DescribedGroupMember, *, is_consumer: bool) -> GroupMember:
    return GroupMember(
        one.member_id,
        one.group_instance_id,
        one.client_id,
        one.client_host.removeprefix("/"),
        assignment_of(one.member_assignment) if is_consumer else None,
        None,
        CLASSIC_TYPE,
    )


def _consumer_member(one: Member) -> GroupMember:
    topics = sorted(one.assignment.topic_partitions, key=lambda topic: topic.topic_name)
    return GroupMember(
        one.member_id,
        one.instance_id,
        one.client_id,
        one.client_host.removeprefix("/"),
        {topic.topic_name: sorted(topic.partitions) for topic in topics if topic.partitions},
        one.member_epoch,
        CLASSIC_TYPE if one.member_type == CLASSIC_MEMBER else CONSUMER_TYPE,
    )


def assignment_of(assignment: bytes) -> dict[str, list[int]] | None:
    """The partitions of a ConsumerProtocolAssignment, by topic; None: it is something else."""
    places = assigned_partitions(assignment)
    if places is None:
        return None
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found
