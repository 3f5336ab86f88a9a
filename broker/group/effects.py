"""The effects of groups, beside those of every machine (`broker/machine.py`), and answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from moldau.broker import machine
from moldau.broker.errors import ErrorCode
from moldau.broker.group.assign.job import Job
from moldau.broker.group.record import ConsumerMember, ConsumerRecord, GroupRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicIdPartition
from moldau.broker.group.views import Owners
from moldau.broker.machine import ArmTimer, CancelTimer, Failed, Reply

NO_GENERATION = -1


class MemberChange(StrEnum):
    JOINED = "joined"
    LEFT = "left"
    EXPIRED = "expired"
    """Its session ended, or it did not join again in time."""


class JoinedMember(Struct, frozen=True):
    """A member as the leader sees it, with its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(Struct, frozen=True):
    error: ErrorCode
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members, in the leader's answer; empty for the others."""
    skip_assignment: bool = False


class SyncAnswer(Struct, frozen=True):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeftMember(Struct, frozen=True):
    member_id: str
    """The id in the request; empty if an administrator named only the instance."""
    instance_id: str | None
    error: ErrorCode


class LeaveAnswer(Struct, frozen=True):
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


class DeleteAnswer(Struct, frozen=True):
    error: ErrorCode


class HeartbeatAnswer(Struct, frozen=True):
    """The answer to a `ConsumerHeartbeat`."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Collection[TopicIdPartition] | None = None
    """None if the assignment is the one sent last."""
    rests: bool = False
    """The member has its whole target: the same request gets the same answer until it changes."""


Answer: TypeAlias = JoinAnswer | SyncAnswer | LeaveAnswer | DeleteAnswer | HeartbeatAnswer


class Persist(machine.Persist, frozen=True):
    """Store the group.

    `record` None: remove the group, its offsets and its entry in the slot's index.
    `identity` is never reused after a deletion: so the store can refuse a write that arrives late.
    """

    identity: str
    record: GroupRecord | ConsumerRecord | None
    members: Mapping[str, Callable[[], ConsumerMember] | None] = {}
    """The changed members of a group of the consumer protocol, as they were then; None if
    removed."""
    whole: bool = True
    """Remove stored members that are not named here."""
    owners: Owners | None = None
    """The partitions of each member once this is stored; None if the group is gone."""


class Assign(Struct, frozen=True):
    """Run this job in slices, then send `Assigned`, whatever the outcome. There is one at a
    time."""

    job: Job

    @property
    def name(self) -> str:
        return self.job.group_id


class Resolve(Struct, frozen=True):
    """Match these patterns with topics in slices, then send `Resolved`. There is one at a time."""

    name: str
    patterns: tuple[str, ...]
    names: frozenset[str] | None
    """The topics to match; None for all topics."""


class StateChanged(Struct, frozen=True):
    """Reported for the log and group events; nothing needs to be done."""

    group_id: str
    previous: GroupState
    state: GroupState
    generation_id: int
    members: int
    reason: str


class MemberChanged(Struct, frozen=True):
    """A member joined or is gone. Reported for group events; nothing needs to be done."""

    group_id: str
    change: MemberChange
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    members: int
    """How many members there are now."""


Effect: TypeAlias = (
    Reply[Answer]
    | Persist
    | ArmTimer
    | CancelTimer
    | StateChanged
    | MemberChanged
    | Assign
    | Resolve
    | Failed
)
