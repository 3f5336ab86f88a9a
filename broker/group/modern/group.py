"""`ConsumerGroup` is one group of the consumer protocol: events in, effects out.

    member.epoch <= target_epoch <= group_epoch

`group_epoch` counts every change that the target depends on: members, subscriptions, topics.
`target_epoch` is the group epoch for which the target was computed. `member.epoch` is the target
that a member has reached, one step per heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import Effect
from moldau.broker.group.events import (
    Assigned,
    ConsumerHeartbeat,
    Delete,
    Event,
    Join,
    Leave,
    Resolved,
    Sync,
    TopicsChanged,
)
from moldau.broker.group.generations import LIMIT, lowered
from moldau.broker.group.modern import (
    classic_members,
    commits,
    heartbeat,
    regex_resolution,
    removal,
    target,
)
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.members import MemberState, restored
from moldau.broker.group.modern.subscriptions import Pattern
from moldau.broker.group.modern.writes import PendingAnswer
from moldau.broker.group.record import ConsumerMember, ConsumerRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.timers import TimerKind
from moldau.broker.group.topics import TopicLookup
from moldau.broker.group.views import (
    CONSUMER,
    ConsumerGroupView,
    GroupListing,
    GroupView,
    PartitionOwner,
)
from moldau.broker.group.writes import DeleteGroup, SaveGroup
from moldau.broker.machine import Persisted, TimerFired


class ConsumerGroup(ConsumerGroupData):
    @classmethod
    def restore(
        cls,
        record: ConsumerRecord,
        members: Iterable[ConsumerMember],
        config: GroupConfig,
        ids: IdGenerator,
        topics: TopicLookup,
        now_ms: int,
        min_epoch: int = 0,
    ) -> tuple[ConsumerGroup, list[Effect]]:
        """Restore the group as it was stored. Sessions and revocation timeouts start again. No
        epoch rises unless a subscribed topic has changed.

        A group whose epoch exceeds the limit continues without its members, at a lower epoch:
        epochs are compared by size, so the members have to join again.
        """
        group = cls(record.group_id, record.identity, config, ids, now_ms, topics)
        group.group_epoch = record.generation_id
        group.target_epoch = record.target_epoch
        group.min_epoch = min_epoch
        if record.generation_id >= LIMIT:
            group.group_epoch = group.target_epoch = lowered(min_epoch, now_ms)
            group.unsaved.whole = group.head_changed = True
            members = ()
        group.assignor = record.protocol_name or ""
        group.state_since_ms = record.state_since_ms
        group.revision = record.revision
        for one in record.patterns:
            known = None if one.topics is None else frozenset(one.topics)
            group.subscriptions.patterns[one.pattern] = Pattern(known)
        for stored in members:
            member = restored(stored)
            member.names = group.subscriptions.shared(member.names)
            group.enter(member)
            group.hold(member)
            group.renew_session(member)
            if member.state is MemberState.UNREVOKED:
                group.arm_revoke(member)
        group.state = group.state_now()
        for name in [n for n, one in group.subscriptions.patterns.items() if not one.members]:
            del group.subscriptions.patterns[name]
        if group.members and group.subscriptions.topic_hash != record.topic_hash:
            group.raise_epoch()
        target.await_joins(group)
        regex_resolution.restored(group)
        target.check(group)
        return group, group.finish("restored")

    def store_again(self, now_ms: int) -> list[Effect]:
        self.unsaved.whole = self.head_changed = True
        return super().store_again(now_ms)

    def end(self) -> None:
        removal.unload(self)

    # --- offsets and views ---

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        now_ms: int,
        *,
        version: int,
        partitions: Iterable[tuple[str | bytes, int]] = (),
        transactional: bool = False,
    ) -> ErrorCode:
        return commits.check_commit(
            self, member_id, generation_id, version, partitions, transactional=transactional
        )

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return commits.check_fetch(self, member_id, epoch)

    def subscribed_topics(self) -> frozenset[str] | None:
        return self.subscriptions.all()

    def expires_from_ms(self, commit_ms: int) -> int | None:
        return commit_ms

    @property
    def is_forgettable(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def subscribes(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return len(self.members)

    def owners(self) -> list[PartitionOwner]:
        return commits.owners(self.members.values(), self.topics)

    def describe(self) -> GroupView:
        """DescribeGroups treats it as absent: ConsumerGroupDescribe shows it."""
        return GroupView(self.group_id, GroupState.DEAD)

    def describe_consumers(self) -> ConsumerGroupView:
        return commits.view(self)

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, CONSUMER, self.state, CONSUMER)

    # --- events from outside ---

    def _timer_fired(self, event: TimerFired) -> None:
        key = event.key
        if not self.is_due(key):
            return
        match key.kind:
            case TimerKind.SESSION:
                heartbeat.session_timer_fired(self, key.member_id)
            case TimerKind.REVOKE:
                heartbeat.revoke_timer_fired(self, key.member_id)
            case TimerKind.TARGET:
                target.check(self)
            case TimerKind.PATTERNS:
                regex_resolution.timer_fired(self)
            case TimerKind.CLASSIC_JOIN:
                classic_members.join_timer_fired(self, key.member_id)
            case TimerKind.CLASSIC_SYNC:
                classic_members.sync_timer_fired(self, key.member_id)
            case TimerKind.PERSIST_RETRY:
                self.store(DeleteGroup(None) if self.state is GroupState.DEAD else SaveGroup())

    def _persisted(self, event: Persisted) -> None:
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

    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        ConsumerHeartbeat: heartbeat.heartbeat,
        Join: classic_members.join,
        Sync: classic_members.sync,
        Leave: classic_members.leave,
        Delete: removal.delete,
        TopicsChanged: regex_resolution.topics_changed,
        Assigned: target.assigned,
        Resolved: regex_resolution.resolved,
        TimerFired: _timer_fired,
        Persisted: _persisted,
    }
