"""The effects of groups, beside those of every machine (`machine/effects.py`), and answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.group.assign.job import Job
from moldau.broker.group.record import ConsumerMember, ConsumerRecord, GroupRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import Place
from moldau.broker.group.views import Owners
from moldau.broker.machine import effects
from moldau.broker.machine.effects import ArmTimer, CancelTimer, Failed, Reply

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
    """All members, for the leader; empty for the others."""
    skip_assignment: bool = False


class SyncAnswer(Struct, frozen=True):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeftMember(Struct, frozen=True):
    member_id: str
    """As in the request: empty when an administrator named only the instance."""
    instance_id: str | None
    error: ErrorCode


class LeaveAnswer(Struct, frozen=True):
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


class DeleteAnswer(Struct, frozen=True):
    error: ErrorCode


class HeartbeatAnswer(Struct, frozen=True):
    """To a `ConsumerHeartbeat`."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Collection[Place] | None = None
    """None: as it was sent last."""
    rests: bool = False
    """The member has all it is to have: the same request gets the same answer until it changes."""


Answer: TypeAlias = JoinAnswer | SyncAnswer | LeaveAnswer | DeleteAnswer | HeartbeatAnswer


class Persist(effects.Persist, frozen=True):
    """Store the group.

    `record` None: remove the group, its offsets and its entry in the slot's index.
    `identity` is never reused after a deletion: so the store can refuse a write that arrives late.
    """

    identity: str
    record: GroupRecord | ConsumerRecord | None
    members: Mapping[str, Callable[[], ConsumerMember] | None] = {}
    """Of a group of the consumer protocol: those that changed, as they were then; None: gone."""
    whole: bool = True
    """Members that are stored and not named here are removed."""
    owners: Owners | None = None
    """Who has which partitions once it is stored; None: the group is gone."""


class Assign(Struct, frozen=True):
    """Run this job in slices, then send `Assigned`, whatever the outcome. One at a time."""

    job: Job

    @property
    def name(self) -> str:
        return self.job.group_id


class Resolve(Struct, frozen=True):
    """Match these patterns with topics in slices, then send `Resolved`. One at a time."""

    name: str
    patterns: tuple[str, ...]
    names: frozenset[str] | None
    """None: all topics that there are."""


class StateChanged(Struct, frozen=True):
    """For the log and group events; nothing needs to be done."""

    group_id: str
    previous: GroupState
    state: GroupState
    generation_id: int
    members: int
    reason: str


class MemberChanged(Struct, frozen=True):
    """A member joined or is gone. For group events; nothing needs to be done."""

    group_id: str
    change: MemberChange
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    members: int
    """How many there are now."""


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
