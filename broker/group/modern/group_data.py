"""The data of a group of the consumer protocol, beside that of every modern group (`core.py`):
instances, classic members, holders of partitions, patterns. Every transition uses these.

The transitions are functions over `ConsumerGroupData` in other modules; none is called from here.
"""

from __future__ import annotations

from abc import ABC

from msgspec import Struct

from moldau.broker.group.config import ConsumerLimits, GroupConfig, IdGenerator
from moldau.broker.group.effects import MemberChange
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.modern.core import ModernCore
from moldau.broker.group.modern.members import Member, MemberState
from moldau.broker.group.record import ConsumerRecord, StoredPattern
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import PartitionEpochs, TopicIdPartition, TopicLookup
from moldau.broker.group.views import CONSUMER, Owners


class Step(Struct, frozen=True):
    """The next state of a member."""

    state: MemberState
    epoch: int
    assigned: PartitionEpochs
    revoking: PartitionEpochs


class ConsumerGroupData(ModernCore, ABC):
    def __init__(
        self,
        group_id: str,
        identity: str,
        config: GroupConfig,
        ids: IdGenerator,
        now_ms: int,
        topics: TopicLookup,
    ) -> None:
        super().__init__(group_id, identity, config, ids, now_ms, topics)
        self.by_instance: dict[str, Member] = {}
        self.classic_members: dict[str, Member] = {}
        """The members that use the classic protocol."""
        self.holders: dict[TopicIdPartition, Member] = {}
        self.unmatched: set[str] = set()
        """New topics that have not been matched with the patterns yet."""
        self.last_match_ms = 0
        self.refresh_ms = 0
        """When patterns are matched with all topics again."""

    @property
    def limits(self) -> ConsumerLimits:
        consumer = self.config.consumer
        return consumer.of_group.get(self.group_id, consumer.limits)

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

    # --- members ---

    def enter(self, member: Member) -> None:
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member
        if member.classic is not None:
            self.classic_members[member.member_id] = member
        super().enter(member)

    def remove(self, member: Member, change: MemberChange | None) -> None:
        """Its partitions are free at once."""
        if member.instance_id is not None and self.by_instance[member.instance_id] is member:
            del self.by_instance[member.instance_id]
        self.classic_members.pop(member.member_id, None)
        self.release(member)
        for kind in (TimerKind.REVOKE, TimerKind.CLASSIC_JOIN, TimerKind.CLASSIC_SYNC):
            self.cancel(kind, member.member_id)
        super().remove(member, change)

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
        return super().session_ms(member) if classic is None else classic.session_timeout_ms

    # --- what is stored ---

    def stored_owners(self) -> Owners:
        return Owners(self.subscriptions.all(), self.owners)

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
