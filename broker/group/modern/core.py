"""The data of a group whose members heartbeat (KIP-848, KIP-932): epochs, members, sessions,
answers, writes. Consumer groups and share groups add what is their own.

The transitions are functions in other modules; none is called from here, but for the hooks that a
kind of group fills in.

A write has the head of the group and the members that changed. One that failed is not undone:
memory stays ahead of the store, and the next write includes it. Members that waited for it get an
error that clients retry, and come back with the epoch they know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.group.assign.job import Assignor
from moldau.broker.group.config import ConsumerLimits, GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    Answer,
    Assign,
    DeleteAnswer,
    Effect,
    HeartbeatAnswer,
    JoinAnswer,
    MemberChange,
    Persist,
    StateChanged,
)
from moldau.broker.group.events import Delete
from moldau.broker.group.group_base import DeleteGroup, GroupBase, SaveGroup, TimerKind, WriteReason
from moldau.broker.group.modern.members import NOWHERE, Member, MemberState, Subscriptions
from moldau.broker.group.record import ConsumerRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import PartitionEpochs, TopicLookup, by_topic
from moldau.broker.group.views import GroupView, Owners, PartitionOwner
from moldau.broker.machine import Persisted, TimerKey


class PendingAnswer(WriteReason, frozen=True):
    """A member waits for this answer until the state that it tells is stored."""

    member_id: str
    call: object
    answer: Answer
    refusal: Answer
    """The answer if it cannot be stored."""
    epoch: int
    assigned: PartitionEpochs | None
    """The partitions that the answer assigns; None if they are not new."""


class Unsaved:
    """The members whose changes are not stored yet."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        """The members of the next write, in order."""
        self.in_flight: dict[str, None] = {}
        self.whole = False
        """Replace everything that is stored: the group was converted, or the store lost data."""
        self.whole_in_flight = False

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.changed or member_id in self.in_flight

    def begin(self, members: Mapping[str, Member]) -> tuple[Mapping[str, Member | None], bool]:
        if self.whole:
            self.changed = dict.fromkeys(members)
        self.in_flight, self.changed = self.changed, {}
        self.whole_in_flight, self.whole = self.whole, False
        return {one: members.get(one) for one in self.in_flight}, self.whole_in_flight

    def end(self, *, stored: bool) -> None:
        if not stored:
            self.changed = {**self.in_flight, **self.changed}
            self.whole = self.whole or self.whole_in_flight
        self.in_flight, self.whole_in_flight = {}, False


class ModernCore(GroupBase, ABC):
    def __init__(
        self,
        group_id: str,
        identity: str,
        config: GroupConfig,
        ids: IdGenerator,
        now_ms: int,
        topics: TopicLookup,
    ) -> None:
        super().__init__(group_id, identity, config, ids, now_ms)
        self.topics = topics
        self.target_epoch = 0
        self.min_epoch = 0
        """Lower bound of the next group epoch: members may have seen epochs that were not
        restored."""
        self.assignor = ""
        """The assignor of the target."""
        self.members: dict[str, Member] = {}
        self.subscriptions = Subscriptions(topics)
        self.resting = 0
        """How many members have reached the target."""
        self.assigning: int | None = None
        """The epoch for which a target is being computed."""
        self.last_target_ms: int | None = None
        self.asking: list[tuple[str, Any]] = []
        """Heartbeats, by member id, that wait for the target being computed."""
        self.resolving = False
        """True while the topics are looked for that patterns match."""
        self.unsaved = Unsaved()
        self.head_changed = False
        self.reason = ""
        """The reason of the last change, for the log."""

    # --- what a kind of group adds ---

    @property
    @abstractmethod
    def limits(self) -> ConsumerLimits:
        """The limits of this group: the broker's, or its own settings."""

    @abstractmethod
    def state_now(self) -> GroupState: ...

    @abstractmethod
    def wanted_assignor(self) -> tuple[str, Assignor]:
        """Return the assignor of the next target, and its name."""

    @abstractmethod
    def target_arrived(self) -> None:
        """There is a new target."""

    @abstractmethod
    def conclude(self, member: Member, request: Any) -> None:
        """Finish a heartbeat that has waited for a target."""

    @abstractmethod
    def head(self, revision: int) -> ConsumerRecord:
        """Return what is stored of the group beside its members."""

    @abstractmethod
    def stored_owners(self) -> Owners:
        """Return who has which partitions once this is stored."""

    # --- epochs and state ---

    @property
    def group_epoch(self) -> int:
        return self.generation_id

    @group_epoch.setter
    def group_epoch(self, epoch: int) -> None:
        self.generation_id = epoch

    def store_again(self, now_ms: int) -> list[Effect]:
        self.unsaved.whole = self.head_changed = True
        return super().store_again(now_ms)

    def raise_epoch(self, reason: str = "") -> None:
        self.group_epoch = max(self.group_epoch + 1, self.min_epoch)
        self.head_changed = True
        if reason:
            self.reason = reason

    def finish(self, reason: str) -> list[Effect]:
        """End an event: report the state, and begin a write if one is wanted."""
        state = self.state_now()
        if state is not self.state:
            self._move(state, self.reason or reason)
        self.reason = ""
        # A target that was just requested is usually ready at once, and is then stored by the same
        # write.
        if not any(type(effect) is Assign for effect in self.effects):
            if (self.unsaved.changed or self.head_changed) and not self.waiting:
                is_retrying = TimerKey(self.group_id, TimerKind.PERSIST_RETRY) in self._armed
                if self.state is not GroupState.DEAD and not is_retrying:
                    self.waiting.append(SaveGroup())
            self.begin_write()
        return self.take_effects()

    def _move(self, state: GroupState, reason: str) -> None:
        if GroupState.EMPTY in (state, self.state):
            self.state_since_ms = self.now_ms
        changed = StateChanged(
            self.group_id, self.state, state, self.group_epoch, len(self.members), reason
        )
        self.state = state
        self.effects.append(changed)

    def die(self, reason: str) -> None:
        self._move(GroupState.DEAD, reason)

    # --- members ---

    def enter(self, member: Member) -> None:
        """Add a member, new or restored."""
        self.members[member.member_id] = member
        self.subscriptions.add(member)
        self.rest(member)

    def remove(self, member: Member, change: MemberChange | None) -> None:
        """Remove a member. Its pending requests get UNKNOWN_MEMBER_ID."""
        self._refuse(member.member_id)
        self.unrest(member)
        del self.members[member.member_id]
        self.subscriptions.remove(member)
        self.cancel_session(member)
        self.changed(member)
        if change is not None:
            self.report(change, member)

    def changed(self, member: Member) -> None:
        """Note that this member has to be stored."""
        self.unsaved.changed[member.member_id] = None

    def rest(self, member: Member) -> None:
        """Note whether the member has anything left to ask for."""
        is_there = member.state is MemberState.STABLE and member.epoch == self.target_epoch
        if is_there and member.rests_at != self.target_epoch:
            member.rests_at = self.target_epoch
            self.resting += 1
        elif not is_there:
            self.unrest(member)

    def unrest(self, member: Member) -> None:
        if member.rests_at == self.target_epoch:
            self.resting -= 1
        member.rests_at = NOWHERE

    # --- sessions ---

    def session_ms(self, member: Member) -> int:
        return self.limits.session_timeout_ms

    def renew_session(self, member: Member) -> None:
        self.extend_session(member, self.session_ms(member))

    # --- answers ---

    def answer_when_stored(self, pending: PendingAnswer) -> None:
        """Answer now, or once the state that the answer tells is stored."""
        if pending.member_id in self.unsaved:
            self.waiting.append(pending)
        else:
            self.stored_for(pending, ErrorCode.NONE)

    def stored_for(self, pending: PendingAnswer, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.reply(pending.call, pending.refusal)
            return
        self.reply(pending.call, pending.answer)
        member = self.members.get(pending.member_id)
        if member is not None:
            member.sent_epoch = pending.epoch
            if pending.assigned is not None:
                member.sent = pending.assigned

    def _refuse(self, member_id: str) -> None:
        """Refuse the pending answers of a member that is gone."""
        if member_id in self.unsaved:
            for reasons in (self.waiting, self.write or []):
                for pending in [one for one in reasons if isinstance(one, PendingAnswer)]:
                    if pending.member_id == member_id:
                        reasons[reasons.index(pending)] = SaveGroup()
                        self.reply(pending.call, unknown_member(pending.answer))

    # --- what is stored ---

    def persisted(self, event: Persisted) -> None:
        if event.revision != self.revision:
            return
        stored = event.error is ErrorCode.NONE
        self.unsaved.end(stored=stored)
        if not stored:
            self.head_changed = True
            if self.state is not GroupState.DEAD:
                self.store_later()
        for reason in self.end_write(event.revision):
            if isinstance(reason, PendingAnswer):
                self.stored_for(reason, event.error)
            elif isinstance(reason, DeleteGroup):
                self.deleted(reason, event.error)

    def _is_durable_point(self) -> bool:
        return self.state is not GroupState.DEAD

    def _persist(self, revision: int) -> Persist:
        changed, whole = self.unsaved.begin(self.members)
        self.head_changed = False
        self.cancel(TimerKind.PERSIST_RETRY)
        return Persist(
            self.group_id,
            revision,
            self.identity,
            self.head(revision),
            {
                member_id: None if member is None else member.snapshot()
                for member_id, member in changed.items()
            },
            whole,
            self.stored_owners(),
        )

    # --- views ---

    def subscribed_topics(self) -> frozenset[str] | None:
        return self.subscriptions.all()

    @property
    def subscribes(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return len(self.members)

    def owners(self) -> list[PartitionOwner]:
        found = []
        for member in self.members.values():
            mine: list[tuple[str, int]] = []
            for topic_id, numbers in by_topic((*member.assigned, *member.revoking)).items():
                facts = self.topics.by_id(topic_id)
                if facts is not None:
                    mine += zip(repeat(facts.name), numbers, strict=False)
            found.append(
                PartitionOwner(
                    member.member_id, member.client_id, member.client_host, tuple(sorted(mine))
                )
            )
        return found

    def describe(self) -> GroupView:
        """DescribeGroups treats it as absent: the API of its kind shows it."""
        return GroupView(self.group_id, GroupState.DEAD)


def delete(group: ModernCore, event: Delete) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, DeleteAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif group.members:
        group.reply(event.call, DeleteAnswer(ErrorCode.NON_EMPTY_GROUP))
    else:
        group.cancel_all_timers()
        group.die("deleted")
        group.store(DeleteGroup(event.call))


def refuse_waiting(group: ModernCore, error: ErrorCode) -> None:
    """Answer every request that waits for a write or a target."""
    refuse(group, group.abandon_writes(), error)


def refuse(group: ModernCore, reasons: Iterable[WriteReason], error: ErrorCode) -> None:
    for reason in reasons:
        if isinstance(reason, DeleteGroup) and reason.call is not None:
            group.reply(reason.call, DeleteAnswer(error))
        elif isinstance(reason, PendingAnswer):
            group.reply(reason.call, with_error(reason.answer, error, reason.member_id))
    waiting, group.asking = group.asking, []
    for _, request in waiting:
        group.reply(request.call, HeartbeatAnswer(error))


def with_error(answer: Answer, error: ErrorCode, member_id: str) -> Answer:
    """Return the same kind of answer with an error."""
    return JoinAnswer(error, member_id) if isinstance(answer, JoinAnswer) else type(answer)(error)


def unknown_member(answer: Answer) -> Answer:
    """Return the same kind of answer with UNKNOWN_MEMBER_ID."""
    return type(answer)(ErrorCode.UNKNOWN_MEMBER_ID)


def refused(error: ErrorCode, message: str | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, message)


UNSTORED = refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
GONE = refused(ErrorCode.UNKNOWN_MEMBER_ID)
