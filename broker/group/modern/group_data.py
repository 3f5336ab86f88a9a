"""The data of a group of the consumer protocol, its sessions, answers and writes. Every transition
uses these.

The transitions are functions over `ConsumerGroupData` in other modules; none is called from here.

A write has the head of the group and the members that changed. One that failed is not undone:
memory stays ahead of the store, and the next write includes it. Members that waited for it get an
error that clients retry, and come back with the epoch they know.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerLimits, GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    Answer,
    Assign,
    Effect,
    MemberChange,
    Persist,
    StateChanged,
)
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.group_base import GroupBase, SaveGroup, TimerKind, WriteReason
from moldau.broker.group.modern.members import NOWHERE, Member, MemberState, Subscriptions
from moldau.broker.group.record import ConsumerRecord, StoredPattern
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import PartitionEpochs, TopicIdPartition, TopicLookup
from moldau.broker.group.views import CONSUMER, Owners
from moldau.broker.machine import TimerKey


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


class Step(Struct, frozen=True):
    """The next state of a member."""

    state: MemberState
    epoch: int
    assigned: PartitionEpochs
    revoking: PartitionEpochs


class ConsumerGroupData(GroupBase, ABC):
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
        self.by_instance: dict[str, Member] = {}
        self.classic_members: dict[str, Member] = {}
        """The members that use the classic protocol."""
        self.holders: dict[TopicIdPartition, Member] = {}
        self.subscriptions = Subscriptions(topics)
        self.resting = 0
        """How many members have reached the target."""
        self.assigning: int | None = None
        """The epoch for which a target is being computed."""
        self.last_target_ms: int | None = None
        self.asking: list[tuple[str, ConsumerHeartbeat]] = []
        """Heartbeats, by member id, that wait for the target being computed."""
        self.resolving = False
        self.unmatched: set[str] = set()
        """New topics that have not been matched with the patterns yet."""
        self.last_match_ms = 0
        self.refresh_ms = 0
        """When patterns are matched with all topics again."""
        self.unsaved = Unsaved()
        self.head_changed = False
        self.reason = ""
        """The reason of the last change, for the log."""

    @property
    def limits(self) -> ConsumerLimits:
        consumer = self.config.consumer
        return consumer.of_group.get(self.group_id, consumer.limits)

    # --- epochs and state ---

    @property
    def group_epoch(self) -> int:
        return self.generation_id

    @group_epoch.setter
    def group_epoch(self, epoch: int) -> None:
        self.generation_id = epoch

    def raise_epoch(self, reason: str = "") -> None:
        self.group_epoch = max(self.group_epoch + 1, self.min_epoch)
        self.head_changed = True
        if reason:
            self.reason = reason

    @property
    def becomes_classic(self) -> bool:
        """True if only classic members are left and the group may become classic."""
        config = self.config
        return (
            self.state is not GroupState.DEAD
            and bool(self.classic_members)
            and len(self.classic_members) == len(self.members)
            and config.consumer.downgrades
            and len(self.members) <= config.max_size
        )

    def state_now(self) -> GroupState:
        if self.state is GroupState.DEAD:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.group_epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if self.resting < len(self.members):
            return GroupState.RECONCILING
        return GroupState.STABLE

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
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member
        if member.classic is not None:
            self.classic_members[member.member_id] = member
        self.subscriptions.add(member)
        self.rest(member)

    def remove(self, member: Member, change: MemberChange | None) -> None:
        """Remove a member. Its partitions are free at once, and its pending requests get
        UNKNOWN_MEMBER_ID."""
        self._refuse(member.member_id)
        self.unrest(member)
        del self.members[member.member_id]
        if member.instance_id is not None and self.by_instance[member.instance_id] is member:
            del self.by_instance[member.instance_id]
        self.classic_members.pop(member.member_id, None)
        self.release(member)
        self.subscriptions.remove(member)
        for kind in (TimerKind.REVOKE, TimerKind.CLASSIC_JOIN, TimerKind.CLASSIC_SYNC):
            self.cancel(kind, member.member_id)
        if member.session_timer_ms is not None:
            member.session_timer_ms = None
            self.cancel(TimerKind.SESSION, member.member_id)
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

    def hold(self, member: Member) -> None:
        for partitions in (member.assigned, member.revoking):
            self.holders.update(dict.fromkeys(partitions, member))

    def release(self, member: Member) -> None:
        for partition in (*member.assigned, *member.revoking):
            if self.holders.get(partition) is member:
                del self.holders[partition]

    def take_step(self, member: Member, step: Step, shown_epoch: int) -> None:
        revokes = step.revoking != member.revoking
        if step.epoch != member.epoch:
            member.previous_epoch = shown_epoch
            member.epoch = step.epoch
        member.state = step.state
        # Otherwise it stays the same object, which tells that an answer need not repeat it.
        changes = step.assigned is not member.assigned and step.assigned != member.assigned
        if changes or revokes:
            before, after = (member.assigned, member.revoking), (step.assigned, step.revoking)
            if step.state is MemberState.UNREVOKED:
                before = {}, member.revoking  # it still holds what it has to give back
            else:
                self.holders.update(dict.fromkeys(_difference(after, before), member))
            for partition in _difference(before, after):
                if self.holders.get(partition) is member:
                    del self.holders[partition]
            if changes:
                member.assigned = step.assigned
            member.revoking = step.revoking
        self.rest(member)
        self.changed(member)
        if member.state is not MemberState.UNREVOKED:
            self.cancel(TimerKind.REVOKE, member.member_id)
        elif revokes:
            self.arm_revoke(member)

    def arm_revoke(self, member: Member) -> None:
        self.arm(TimerKind.REVOKE, self.now_ms + member.rebalance_timeout_ms, member.member_id)

    # --- sessions ---

    def session_ms(self, member: Member) -> int:
        classic = member.classic
        return self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms

    def renew_session(self, member: Member) -> None:
        deadline_ms = self.now_ms + self.session_ms(member)
        member.session_deadline_ms = deadline_ms
        if member.session_timer_ms is None or member.session_timer_ms > deadline_ms:
            self.arm_session(member)

    def arm_session(self, member: Member) -> None:
        member.session_timer_ms = member.session_deadline_ms
        self.arm(TimerKind.SESSION, member.session_deadline_ms, member.member_id)

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
            Owners(self.subscriptions.all(), self.owners),
        )

    def head(self, revision: int) -> ConsumerRecord:
        return ConsumerRecord(
            group_id=self.group_id,
            identity=self.identity,
            revision=revision,
            state=GroupState.STABLE if self.members else GroupState.EMPTY,
            state_since_ms=self.state_since_ms,
            generation_id=self.group_epoch,
            protocol_type=CONSUMER,
            protocol_name=self.assignor,
            target_epoch=self.target_epoch,
            topic_hash=self.subscriptions.topic_hash,
            patterns=tuple(
                StoredPattern(name, None if one.topics is None else tuple(sorted(one.topics)))
                for name, one in self.subscriptions.patterns.items()
            ),
        )


def _difference(
    these: tuple[PartitionEpochs, PartitionEpochs], those: tuple[PartitionEpochs, PartitionEpochs]
) -> set[TopicIdPartition]:
    """Return the partitions that are in `these` but not in `those`: usually few of thousands."""
    found: set[TopicIdPartition] = set()
    for mine in these:
        if not any(mine is theirs for theirs in those):
            found |= mine.keys() - those[0].keys() - those[1].keys()
    return found


def unknown_member(answer: Answer) -> Answer:
    """Return the same kind of answer with UNKNOWN_MEMBER_ID."""
    return type(answer)(ErrorCode.UNKNOWN_MEMBER_ID)
