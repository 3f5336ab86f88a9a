"""`ShareGroup` is one share group (KIP-932): events in, effects out.

Its members have epochs, targets and sessions like those of a consumer group. Nothing is revoked, as
several members may have a partition; what of it they were handed out is not known here (see
`broker/share`). A share group never becomes a group of another kind, nor the other way round, and
stays when it is Empty, until it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from moldau.broker.errors import ErrorCode
from moldau.broker.group.assign.job import Assignor
from moldau.broker.group.assign.simple import SHARE_ASSIGNORS
from moldau.broker.group.config import ConsumerLimits, GroupConfig, IdGenerator
from moldau.broker.group.effects import Effect, HeartbeatAnswer, JoinAnswer, LeaveAnswer, SyncAnswer
from moldau.broker.group.events import (
    Assigned,
    ConsumerHeartbeat,
    Delete,
    Event,
    Join,
    Leave,
    ShareHeartbeat,
    Sync,
    TopicsChanged,
)
from moldau.broker.group.group_base import DeleteGroup, SaveGroup, TimerKind
from moldau.broker.group.modern import share_heartbeat, target
from moldau.broker.group.modern.core import ModernCore, delete, refuse_waiting
from moldau.broker.group.modern.members import Member, restored
from moldau.broker.group.offsets import Committer
from moldau.broker.group.record import SHARE_FORMAT, SHARE_KIND, ConsumerMember, ConsumerRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicLookup, by_topic
from moldau.broker.group.views import (
    SHARE,
    GroupListing,
    Owners,
    ShareGroupView,
    ShareMemberView,
)
from moldau.broker.machine import Persisted, TimerFired


def _refuse_join(group: ShareGroup, event: Join) -> None:
    error = group.error_for_others(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group.reply(event.call, JoinAnswer(error, event.member_id))


def _refuse_sync(group: ShareGroup, event: Sync) -> None:
    group.reply(event.call, SyncAnswer(group.error_for_others(ErrorCode.UNKNOWN_MEMBER_ID)))


def _refuse_leave(group: ShareGroup, event: Leave) -> None:
    group.reply(event.call, LeaveAnswer(group.error_for_others(ErrorCode.UNKNOWN_MEMBER_ID)))


def _refuse_consumer(group: ShareGroup, event: ConsumerHeartbeat) -> None:
    error = group.error_for_others(ErrorCode.GROUP_ID_NOT_FOUND)
    text = f"Group {group.group_id} is not a consumer group."
    group.reply(event.call, HeartbeatAnswer(error, text))


class ShareGroup(ModernCore):
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
    ) -> tuple[ShareGroup, list[Effect]]:
        """Restore the group as it was stored. Sessions start again. No epoch rises unless a
        subscribed topic has changed."""
        group = cls(record.group_id, record.identity, config, ids, now_ms, topics)
        group.group_epoch = record.generation_id
        group.target_epoch = record.target_epoch
        group.min_epoch = min_epoch
        group.assignor = record.protocol_name or ""
        group.state_since_ms = record.state_since_ms
        group.revision = record.revision
        for stored in members:
            member = restored(stored)
            member.names = group.subscriptions.shared(member.names)
            group.enter(member)
            group.renew_session(member)
        group.state = group.state_now()
        if group.members and group.subscriptions.topic_hash != record.topic_hash:
            group.raise_epoch()
        target.check(group)
        return group, group.finish("restored")

    def end(self) -> None:
        refuse_waiting(self, ErrorCode.NOT_COORDINATOR)
        self.cancel_all_timers()
        self.assigning = None
        if self.state is not GroupState.DEAD:
            self.die("given up")
        self.members = {}

    # --- what every modern group does in its own way ---

    @property
    def limits(self) -> ConsumerLimits:
        share = self.config.share
        return share.of_group.get(self.group_id, share.limits)

    def state_now(self) -> GroupState:
        if self.state is GroupState.DEAD:
            return GroupState.DEAD
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def wanted_assignor(self) -> tuple[str, Assignor]:
        name = self.config.share.assignor
        return name, SHARE_ASSIGNORS[name]

    def target_arrived(self) -> None:
        """Members have it with their next heartbeat."""

    def conclude(self, member: Member, request: ShareHeartbeat) -> None:
        share_heartbeat.conclude(self, member, request)

    def stored_owners(self) -> Owners:
        """Nobody: a member of a share group reads no native topic under its client id."""
        return Owners(frozenset(), list)

    def head(self, revision: int) -> ConsumerRecord:
        return ConsumerRecord(
            group_id=self.group_id,
            identity=self.identity,
            revision=revision,
            state=self.state_now(),
            state_since_ms=self.state_since_ms,
            generation_id=self.group_epoch,
            protocol_type=SHARE,
            protocol_name=self.assignor,
            kind=SHARE_KIND,
            target_epoch=self.target_epoch,
            topic_hash=self.subscriptions.topic_hash,
            format=SHARE_FORMAT,
        )

    # --- offsets and views ---

    def error_for_others(self, error: ErrorCode) -> ErrorCode:
        """Return the error for a request of another kind of member."""
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if self.state is GroupState.DEAD else error

    def check_commit(self, committer: Committer, now_ms: int) -> ErrorCode:
        return self.error_for_others(ErrorCode.GROUP_ID_NOT_FOUND)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return ErrorCode.NONE  # there are no offsets

    def expires_from_ms(self, commit_ms: int) -> int | None:
        return None

    @property
    def is_forgettable(self) -> bool:
        return False

    def describe_share(self) -> ShareGroupView:
        return ShareGroupView(
            self.group_id,
            self.state,
            self.group_epoch,
            self.target_epoch,
            self.assignor or self.config.share.assignor,
            tuple(
                ShareMemberView(
                    member.member_id,
                    member.rack_id,
                    member.epoch,
                    member.client_id,
                    member.client_host,
                    tuple(sorted(member.names)),
                    by_topic(member.assigned),
                )
                for member in self.members.values()
            ),
        )

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, SHARE, self.state, SHARE)

    # --- events from outside ---

    def _timer_fired(self, event: TimerFired) -> None:
        key = event.key
        if not self.is_due(key):
            return
        match key.kind:
            case TimerKind.SESSION:
                share_heartbeat.session_timer_fired(self, key.member_id)
            case TimerKind.TARGET:
                target.check(self)
            case TimerKind.PERSIST_RETRY:
                self.store(DeleteGroup(None) if self.state is GroupState.DEAD else SaveGroup())

    converted_by = ()
    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        ShareHeartbeat: share_heartbeat.heartbeat,
        Delete: delete,
        TopicsChanged: share_heartbeat.topics_changed,
        Assigned: target.assigned,
        TimerFired: _timer_fired,
        Persisted: ModernCore.persisted,
        Join: _refuse_join,
        Sync: _refuse_sync,
        Leave: _refuse_leave,
        ConsumerHeartbeat: _refuse_consumer,
    }
