"""What is shown of a group: DescribeGroups, ListGroups, the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from broker.group.classic.group import Group
from broker.group.states import GroupState

CLASSIC = "classic"
"""The group type in ListGroups v5."""


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
    """Empty: simple consumers."""
    protocol_name: str = ""
    """DescribeGroups' `protocol_data`: only when Stable."""
    members: tuple[MemberView, ...] = ()


class GroupListing(Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: GroupState
    type: str = CLASSIC


def describe(group: Group) -> GroupView:
    """Metadata and assignments are shown only when Stable; before that they are not final."""
    stable = group.state is GroupState.STABLE
    return GroupView(
        group_id=group.group_id,
        state=group.state,
        identity=group.identity,
        generation_id=group.generation_id,
        leader=group.roster.leader or "",
        protocol_type=group.protocol_type or "",
        protocol_name=(group.protocol_name or "") if stable else "",
        members=tuple(
            MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.roster.by_id.values()
        ),
    )


def describe_unknown(group_id: str) -> GroupView:
    """A group that does not exist is Dead; DescribeGroups v6+ sends GROUP_ID_NOT_FOUND with it."""
    return GroupView(group_id, GroupState.DEAD)


def list_groups(
    groups: Iterable[Group], states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupListing]:
    """Without a filter: all. Filters ignore case, as clients differ in how they write them."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {kind.lower() for kind in types}
    if wanted_types and CLASSIC not in wanted_types:
        return []
    return [
        GroupListing(group.group_id, group.protocol_type or "", group.state)
        for group in groups
        if not wanted_states or group.state.lower() in wanted_states
    ]
