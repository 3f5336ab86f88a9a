"""Views of a group for DescribeGroups, ConsumerGroupDescribe, ListGroups and the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from moldau.broker.group.record import GroupRecord
from moldau.broker.group.states import GroupState
from moldau.broker.wire import consumer_protocol

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
"""The group types in ListGroups v5."""


class MemberView(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class GroupView(Struct, frozen=True):
    group_id: str
    state: GroupState
    identity: str = ""
    generation_id: int = -1
    leader: str = ""
    protocol_type: str = ""
    """Empty for simple consumers."""
    protocol_name: str = ""
    """DescribeGroups' `protocol_data`; set only when Stable."""
    members: tuple[MemberView, ...] = ()


class ConsumerMemberView(Struct, frozen=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    names: tuple[str, ...]
    pattern: str
    assigned: Mapping[bytes, Sequence[int]]
    """Partition numbers by topic id, in order, including partitions that it has to give back."""
    target: Mapping[bytes, Sequence[int]]
    is_classic: bool


class ConsumerGroupView(Struct, frozen=True):
    group_id: str
    state: GroupState
    group_epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


class ShareMemberView(Struct, frozen=True):
    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    names: tuple[str, ...]
    assigned: Mapping[bytes, Sequence[int]]
    """Partition numbers by topic id, in order."""


class ShareGroupView(Struct, frozen=True):
    group_id: str
    state: GroupState
    group_epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ShareMemberView, ...]


class GroupListing(Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: GroupState
    type: str = CLASSIC


class PartitionOwner(Struct, frozen=True):
    """A member and its partitions."""

    member_id: str
    client_id: str
    client_host: str
    partitions: tuple[tuple[str, int], ...]
    """Pairs of topic name and partition number."""


class Owners(Struct, frozen=True):
    """The partitions of all members, computed when they are asked for."""

    topics: frozenset[str] | None
    """None if unknown: it may be any topic."""
    of_members: Callable[[], list[PartitionOwner]]


def owners_in(record: GroupRecord) -> list[PartitionOwner]:
    """Return the partitions that the stored assignments of a classic group of consumers name."""
    if record.protocol_type != consumer_protocol.CONSUMER:
        return []
    return [
        PartitionOwner(
            member.member_id,
            member.client_id,
            member.client_host,
            tuple(consumer_protocol.assigned_partitions(member.assignment) or ()),
        )
        for member in record.members
    ]


class Listed(Protocol):
    def listing(self) -> GroupListing: ...


def describe_unknown(group_id: str) -> GroupView:
    """Describe a group that does not exist as Dead. DescribeGroups v6+ adds GROUP_ID_NOT_FOUND."""
    return GroupView(group_id, GroupState.DEAD)


def list_groups(
    groups: Iterable[Listed], states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupListing]:
    """List the groups that match, or all without a filter. Filters ignore case, as clients differ
    in how they write states and types."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {kind.lower() for kind in types}
    return [
        listed
        for group in groups
        if (listed := group.listing())
        and (not wanted_states or listed.state.lower() in wanted_states)
        and (not wanted_types or listed.type in wanted_types)
    ]
