"""What a group wants done, and the answers it gives. The worker runs effects in their order.

A `Reply` that promises something durable is only given after the `Persisted` event for it, so the
worker never has to hold one back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from broker.errors import ErrorCode
from broker.group.record import GroupRecord
from broker.group.states import GroupState
from broker.group.timers import TimerKey

NO_GENERATION = -1


class MemberChange(StrEnum):
    JOINED = "joined"
    LEFT = "left"
    EXPIRED = "expired"
    """Its session ended, or it did not join again in time."""


class JoinedMember(Struct, frozen=True):
    """A member as the leader sees it, with its metadata for the protocol that was voted for."""

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
    """Everybody, for the leader; empty for the others."""
    skip_assignment: bool = False


class SyncAnswer(Struct, frozen=True):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeftMember(Struct, frozen=True):
    member_id: str
    """As it was asked for: empty when an administrator named only the instance."""
    instance_id: str | None
    error: ErrorCode


class LeaveAnswer(Struct, frozen=True):
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


class DeleteAnswer(Struct, frozen=True):
    error: ErrorCode


Answer: TypeAlias = JoinAnswer | SyncAnswer | LeaveAnswer | DeleteAnswer


class Reply(Struct, frozen=True):
    """Answer the request with this token. It comes exactly once for each."""

    call: object
    answer: Answer


class Persist(Struct, frozen=True):
    """Store the group, then report `Persisted(token, …)` to it, whatever the outcome.

    `record` None: remove the group, its offsets and its place in the slot's index, together.
    A group has at most one write in flight. Tokens grow with every write, across restarts too
    (`GroupRecord.revision`), and `identity` is never used again after a deletion: so a store which
    may run a write late can refuse an old one.
    """

    group_id: str
    identity: str
    token: int
    record: GroupRecord | None


class ArmTimer(Struct, frozen=True):
    """Send `TimerFired(key)` at that time; if the key is armed already, the time changes."""

    key: TimerKey
    at_ms: int


class CancelTimer(Struct, frozen=True):
    """Only ever for a key that is armed."""

    key: TimerKey


class StateChanged(Struct, frozen=True):
    """For the log and the metrics: nothing needs to be done."""

    group_id: str
    previous: GroupState
    state: GroupState
    generation_id: int
    members: int
    reason: str


class MemberChanged(Struct, frozen=True):
    """Somebody joined or is gone, for those who keep book: nothing needs to be done."""

    group_id: str
    change: MemberChange
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    members: int
    """How many there are now."""


Effect: TypeAlias = Reply | Persist | ArmTimer | CancelTimer | StateChanged | MemberChanged
