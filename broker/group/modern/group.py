"""`ConsumerGroup` is one group of the consumer protocol: events in, effects out; and how it ends.

    member.epoch <= target_epoch <= group_epoch

`group_epoch` counts every change that the target depends on: members, subscriptions, topics.
`target_epoch` is the group epoch for which the target was computed. `member.epoch` is the target
that a member has reached, one step per heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from moldau.broker.errors import ErrorCode
from moldau.broker.group.assign.assignors import ASSIGNORS
from moldau.broker.group.assign.job import Assignor
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
    ShareHeartbeat,
    Sync,
    TopicsChanged,
)
from moldau.broker.group.group_base import (
    LIMIT,
    DeleteGroup,
    SaveGroup,
    TimerKind,
    lowered,
    refuse_share_member,
)
from moldau.broker.group.modern import (
    classic_members,
    heartbeat,
    reconcile,
    target,
)
from moldau.broker.group.modern.core import ModernCore, delete, refuse_waiting
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.members import Member, MemberState, Pattern, restored
from moldau.broker.group.offsets import Committer
from moldau.broker.group.record import ConsumerMember, ConsumerRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicIdPartition, TopicLookup, by_topic
from moldau.broker.group.views import (
    CONSUMER,
    ConsumerGroupView,
    ConsumerMemberView,
    GroupListing,
)
from moldau.broker.machine import Persisted, TimerFired

FIRST_VERSION_WITH_MEMBER_EPOCH = 9


def unload(group: ConsumerGroupData) -> None:
    """Give the group up to another worker."""
    refuse_waiting(group, ErrorCode.NOT_COORDINATOR)
    group.cancel_all_timers()
    group.assigning, group.resolving = None, False
    if group.state is not GroupState.DEAD:
        group.die("given up")
    group.members, group.by_instance, group.classic_members, group.holders = {}, {}, {}, {}


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
        target.match_patterns_again(group)
        target.check(group)
        return group, group.finish("restored")

    def end(self) -> None:
        unload(self)

    # --- what every modern group does in its own way ---

    def wanted_assignor(self) -> tuple[str, Assignor]:
        """Return the assignor that most members ask for, or else the first configured one."""
        known = self.config.consumer.assignors
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        wanted = [name for name, _ in votes.most_common() if name in known]
        name = wanted[0] if wanted else known[0]
        return name, ASSIGNORS[name]

    def target_arrived(self) -> None:
        target.await_joins(self)

    def conclude(self, member: Member, request: ConsumerHeartbeat) -> None:
        reconcile.conclude(self, member, request, unsubscribed=True)

    # --- offsets and views ---

    def check_commit(self, committer: Committer, now_ms: int) -> ErrorCode:
        """Check a commit, which does not renew the session. An older epoch is accepted for
        partitions that the member has had since that epoch (KIP-1251): no other member can have
        committed them."""
        epoch, is_transactional = committer.generation_id, committer.is_transactional
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if is_transactional and epoch < 0 and not committer.member_id:
            return ErrorCode.NONE
        member = self.members.get(committer.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_classic = member.classic is not None
        knows_epochs = is_classic or committer.version >= FIRST_VERSION_WITH_MEMBER_EPOCH
        if not is_transactional and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        stale = ErrorCode.STALE_MEMBER_EPOCH
        if is_classic or is_transactional:
            stale = ErrorCode.ILLEGAL_GENERATION
        if epoch == member.epoch:
            return ErrorCode.NONE
        if epoch > member.epoch or is_classic or epoch < 0:
            return stale
        for topic, partition in committer.partitions:
            found = self._with_topic_id(topic, partition)
            since = None if found is None else member.has(found)
            if since is None or since > epoch:
                return stale
        return ErrorCode.NONE

    def _with_topic_id(self, topic: str | bytes, partition: int) -> TopicIdPartition | None:
        if isinstance(topic, bytes):
            return topic, partition
        facts = self.topics.by_name(topic)
        return None if facts is None else (facts.topic_id, partition)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.NONE
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        is_classic = member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    def expires_from_ms(self, commit_ms: int) -> int | None:
        return commit_ms

    @property
    def is_forgettable(self) -> bool:
        return self.state is GroupState.EMPTY

    def describe_consumers(self) -> ConsumerGroupView:
        return ConsumerGroupView(
            self.group_id,
            self.state,
            self.group_epoch,
            self.target_epoch,
            self.assignor or self.config.consumer.assignors[0],
            tuple(
                ConsumerMemberView(
                    member.member_id,
                    member.instance_id,
                    member.rack_id,
                    member.epoch,
                    member.client_id,
                    member.client_host,
                    tuple(sorted(member.names)),
                    member.pattern,
                    by_topic((*member.assigned, *member.revoking)),
                    by_topic(member.target),
                    member.classic is not None,
                )
                for member in self.members.values()
            ),
        )

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
                target.patterns_timer_fired(self)
            case TimerKind.CLASSIC_JOIN:
                classic_members.join_timer_fired(self, key.member_id)
            case TimerKind.CLASSIC_SYNC:
                classic_members.sync_timer_fired(self, key.member_id)
            case TimerKind.PERSIST_RETRY:
                self.store(DeleteGroup(None) if self.state is GroupState.DEAD else SaveGroup())

    converted_by = Join
    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        ConsumerHeartbeat: heartbeat.heartbeat,
        ShareHeartbeat: refuse_share_member,
        Join: classic_members.join,
        Sync: classic_members.sync,
        Leave: classic_members.leave,
        Delete: delete,
        TopicsChanged: target.topics_changed,
        Assigned: target.assigned,
        Resolved: target.resolved,
        TimerFired: _timer_fired,
        Persisted: ModernCore.persisted,
    }
