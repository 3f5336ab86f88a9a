"""The base of groups of any protocol: identity, state, timers, generations, reasons to be written.

There is one write at a time; later wishes share the next one. This preserves the order in which
records reach the store, and turns a thousand static members that restart at once into a few writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from moldau.broker import machine
from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    DeleteAnswer,
    Effect,
    HeartbeatAnswer,
    MemberChange,
    MemberChanged,
    Persist,
)
from moldau.broker.group.events import ConsumerHeartbeat, Event, Join, ShareHeartbeat
from moldau.broker.group.offsets import Committer
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import GroupListing, GroupView, PartitionOwner
from moldau.broker.machine import TimerKey


class TimerKind(StrEnum):
    SESSION = "session"
    """A member sent nothing for its session timeout. This timer is lazy: a heartbeat only moves the
    deadline, and the timer is armed again for the deadline that it finds when it fires."""
    PENDING_MEMBER = "pending member"
    """A client that got MEMBER_ID_REQUIRED did not join again with its id."""
    NEW_MEMBER = "new member"
    """The first Join of a new member has been parked for too long."""
    INITIAL_DELAY = "initial delay"
    """A group that was Empty has waited for more members."""
    JOIN = "join"
    """The rebalance timeout of PreparingRebalance."""
    SYNC = "sync"
    """The rebalance timeout of CompletingRebalance: members without a Sync are removed."""
    REVOKE = "revoke"
    """A member of the consumer protocol has not revoked partitions within its rebalance timeout."""
    TARGET = "target"
    """The next target may be computed: the last one is `assignment.interval.ms` old."""
    PATTERNS = "patterns"
    """Patterns are matched again, with new topics or with all."""
    CLASSIC_JOIN = "classic join"
    """A classic member of a group of the consumer protocol has not joined again. Lazy."""
    CLASSIC_SYNC = "classic sync"
    """Such a member has joined, but has not asked for its assignment."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""


# The numbers of generations and group epochs are all below 2^24. librdkafka takes the first byte of
# a member epoch for the end of the member id before it: from 2^24 on that byte is not zero, and its
# requests become malformed. Kafka counts from 1 and never gets there. Moldau counts from 1 as well.
# After the store has lost its tail it continues at the `lowest` generation of the slot, which is
# above all numbers that members may have seen.
LIMIT = 1 << 24
ORIGIN_S = 1_577_836_800  # 2020-01-01; the minutes since then stay below the limit until 2051


def following(generation: int, lowest: int, now_ms: int) -> int:
    """The number of the next generation, `lowest` or above. It is lower than this one only at and
    above the limit; earlier versions put generations there."""
    following = max(generation + 1, lowest)
    if following < LIMIT:
        return following
    return lowered(0 if lowest <= generation < LIMIT else lowest, now_ms)


def lowered(lowest: int, now_ms: int) -> int:
    """Where a group above the limit continues: the minutes since 2020 are above the numbers that it
    had before it got there, because it counted those from 1."""
    minutes = (now_ms // 1000 - ORIGIN_S) // 60
    return max(lowest if lowest < LIMIT else 0, minutes % LIMIT, 1)


class WriteReason(Struct, frozen=True):
    """Why the group is written. A protocol adds its own."""


class SaveGroup(WriteReason, frozen=True):
    """The group is new or has become Empty, or a failed write left the store in doubt. No request
    waits for this."""


class DeleteGroup(WriteReason, frozen=True):
    """The group is to be removed."""

    call: object | None
    """None: the client was answered when the first attempt failed, this is another one."""


class AnyMember(Protocol):
    """A member of any protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_deadline_ms: int
    """Heartbeats move this deadline. The timer may be armed for an earlier time."""
    session_timer_ms: int | None
    """When the session timer fires. None if it is not armed."""


class GroupBase(machine.Machine[Effect, list[WriteReason]], ABC):
    """A group of any protocol. It never keeps an effect."""

    def __init__(
        self, group_id: str, identity: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> None:
        super().__init__(group_id, now_ms)
        self.group_id = group_id
        self.identity = identity
        self.config = config
        self.ids = ids
        self.generation_id = 0
        """The group epoch, in a group of the consumer protocol."""
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.waiting: list[WriteReason] = []
        """Reasons for the next write."""
        self._extended: set[TimerKey] = set()
        """Timers that fired late and were armed once more."""

    # --- what happens to a group ---

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        handler = self.handlers.get(type(event))
        if handler is not None:  # otherwise of another protocol: the group was converted meanwhile
            handler(self, event)
        return self.finish(type(event).__name__)

    def store_again(self, now_ms: int) -> list[Effect]:
        """Store the group again, since the store lost its record."""
        self.now_ms = now_ms
        if self.state is not GroupState.DEAD:
            self.store(SaveGroup())
        return self.take_effects()

    def unload(self, now_ms: int) -> list[Effect]:
        """Give the group up to another worker: waiting requests get NOT_COORDINATOR, and all timers
        are cancelled. The stored record stays. The outcome of a write in flight need not be
        reported."""
        self.now_ms = now_ms
        self.end()
        return self.take_effects()

    def finish(self, reason: str) -> list[Effect]:
        """Called at the end of every event."""
        return self.take_effects()

    # --- what a protocol adds ---

    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]]
    """The handler of each kind of event."""

    converted_by: ClassVar[type[Join | ConsumerHeartbeat] | tuple[()]]
    """The request of another protocol's member that may convert the group; (): none does."""

    @abstractmethod
    def end(self) -> None:
        """The part of `unload` that differs between protocols."""

    @abstractmethod
    def check_commit(self, committer: Committer, now_ms: int) -> ErrorCode:
        """Check whether this member may now commit offsets of these partitions."""

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check whether OffsetFetch v9+ of this member may be answered."""

    @abstractmethod
    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to, or None if unknown: it may be any topic."""

    @abstractmethod
    def expires_from_ms(self, commit_ms: int) -> int | None:
        """Return when the retention of an offset starts, or None if nothing expires now."""

    @property
    @abstractmethod
    def is_forgettable(self) -> bool:
        """True if nothing but offsets is left of the group. Without them `Delete` can end it."""

    @property
    @abstractmethod
    def subscribes(self) -> bool:
        """True if members subscribe to topics, so that offsets of other topics may be deleted."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of members."""

    @abstractmethod
    def owners(self) -> list[PartitionOwner]:
        """Return the partitions of each member."""

    @abstractmethod
    def describe(self) -> GroupView:
        """Return the view for DescribeGroups."""

    @abstractmethod
    def listing(self) -> GroupListing: ...

    @abstractmethod
    def _is_durable_point(self) -> bool:
        """True if the group can be stored as it is now."""

    @abstractmethod
    def _persist(self, revision: int) -> Persist:
        """Emit the write from which the group is restored after a restart."""

    @property
    def is_gone(self) -> bool:
        """True if the group is Dead and nothing is left to be done: drop it."""
        return self.state is GroupState.DEAD and self.is_at_rest

    def report(self, change: MemberChange, member: AnyMember) -> None:
        self.effects.append(
            MemberChanged(
                self.group_id,
                change,
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                self.size,
            )
        )

    # --- sessions ---

    def extend_session(self, member: AnyMember, session_ms: int) -> None:
        """Restart the session of a member."""
        deadline_ms = self.now_ms + session_ms
        member.session_deadline_ms = deadline_ms
        if member.session_timer_ms is None or member.session_timer_ms > deadline_ms:
            self.arm_session(member)

    def arm_session(self, member: AnyMember) -> None:
        member.session_timer_ms = member.session_deadline_ms
        self.arm(TimerKind.SESSION, member.session_deadline_ms, member.member_id)

    def cancel_session(self, member: AnyMember) -> None:
        if member.session_timer_ms is not None:
            member.session_timer_ms = None
            self.cancel(TimerKind.SESSION, member.member_id)

    # --- timers ---

    def arm(self, kind: StrEnum, at_ms: int, member_id: str = "") -> None:
        super().arm(kind, at_ms, member_id)
        self._extended.discard(TimerKey(self.group_id, kind, member_id))

    def is_due(self, key: TimerKey) -> bool:
        at_ms = self._armed.get(key, self.now_ms)
        if self.now_ms - at_ms > self.config.late_timer_ms and key not in self._extended:
            self.arm(key.kind, self.now_ms + self.config.late_timer_grace_ms, key.member_id)
            self._extended.add(key)
            return False
        is_due = super().is_due(key)
        if is_due:
            self._extended.discard(key)
        return is_due

    # --- writes ---

    def store(self, reason: WriteReason) -> None:
        """Store the group as it is now, or as it is once the write in flight has ended."""
        self.waiting.append(reason)
        self.begin_write()

    def store_later(self) -> None:
        """Retry a failed write later, if no other write follows."""
        self.arm(TimerKind.PERSIST_RETRY, self.now_ms + self.config.persist_retry_ms)

    def begin_write(self) -> None:
        """Start a write if one is wanted and none is in flight.

        During a rebalance there is nothing to write: earlier requests to write are out of date, and
        the end of the rebalance writes the group anyway.
        """
        if self.write is not None or not self.waiting:
            return
        if any(type(reason) is DeleteGroup for reason in self.waiting):
            revision = self._write_begins()
            self.effects.append(Persist(self.group_id, revision, self.identity, None))
        elif self._is_durable_point():
            self.effects.append(self._persist(self._write_begins()))
        else:
            self.waiting.clear()

    def _write_begins(self) -> int:
        waiting, self.waiting = self.waiting, []
        return self.write_begins(waiting)

    @property
    def is_writing(self) -> bool:
        return self.write is not None

    @property
    def is_at_rest(self) -> bool:
        """True without a write in flight or an armed timer: nothing will happen by itself."""
        return not self.is_writing and not self._armed

    def end_write(self, revision: int) -> list[WriteReason]:
        """The reasons of that write; none, if it is not the one in flight."""
        return self.write_ended(revision) or []

    def deleted(self, wanted: DeleteGroup, error: ErrorCode) -> None:
        """A deletion that failed may still have happened, or half of it, so the group cannot come
        back. It stays Dead, and the deletion is retried until it succeeds."""
        if wanted.call is not None:
            self.reply(wanted.call, DeleteAnswer(error))
        if error is ErrorCode.NONE:
            self.cancel_all_timers()
        else:
            self.store_later()

    def abandon_writes(self) -> list[WriteReason]:
        """Returns everything that was wanted. An outcome reported later is ignored."""
        reasons = (self.write or []) + self.waiting
        self.write, self.waiting = None, []
        return reasons


def refuse_share_member(group: GroupBase, event: ShareHeartbeat) -> None:
    """Groups of other kinds never become share groups."""
    if group.state is GroupState.DEAD:
        answer = HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        text = f"Group {group.group_id} is not a share group."
        answer = HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, text)
    group.reply(event.call, answer)
