"""`Group` is one classic consumer group: events in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic import join, sessions, sync
from moldau.broker.group.classic.group_data import (
    GroupData,
    Member,
    SaveAssignments,
    SaveReplacement,
)
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import Effect
from moldau.broker.group.events import (
    ConsumerHeartbeat,
    Delete,
    Event,
    Join,
    Leave,
    ShareHeartbeat,
    Sync,
)
from moldau.broker.group.group_base import DeleteGroup, SaveGroup, TimerKind, refuse_share_member
from moldau.broker.group.offsets import Committer
from moldau.broker.group.record import GroupRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import GroupListing, GroupView, MemberView, PartitionOwner, owners_in
from moldau.broker.machine import Persisted, TimerFired
from moldau.broker.wire import consumer_protocol
from moldau.broker.wire.consumer_protocol import CONSUMER


class Group(GroupData):
    """A classic consumer group. `states.py` documents its behaviour in each state."""

    @classmethod
    def create(
        cls, group_id: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> tuple[Group, list[Effect]]:
        """Create an Empty group of generation 0. Its identity is stored at once."""
        group = cls(group_id, ids.identity(now_ms), config, ids, now_ms)
        group.store(SaveGroup())
        return group, group.take_effects()

    @classmethod
    def restore(
        cls,
        record: GroupRecord,
        config: GroupConfig,
        ids: IdGenerator,
        now_ms: int,
        min_generation: int = 0,
    ) -> tuple[Group, list[Effect]]:
        """Restore the group as it was stored. Only sessions start again."""
        group = cls(record.group_id, record.identity, config, ids, now_ms)
        group.state = record.state
        group.state_since_ms = record.state_since_ms
        group.generation_id = record.generation_id
        group.min_generation = min_generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.revision = record.revision
        for stored in record.members:
            member = Member(
                stored.member_id,
                stored.instance_id,
                stored.client_id,
                stored.client_host,
                stored.session_timeout_ms,
                stored.rebalance_timeout_ms,
                stored.protocols,
                stored.assignment,
            )
            group.roster.add(member)
            group.renew_session(member)
        group.roster.leader = record.leader
        return group, group.take_effects()

    def end(self) -> None:
        sessions.unload(self)

    # --- offsets and views ---

    def check_commit(self, committer: Committer, now_ms: int) -> ErrorCode:
        """Check whether this member may commit offsets now. If so, renew its session.

        A simple consumer has no member id and a negative generation: only an Empty group accepts
        its commits. Transactions have their own fencing, so they may commit in CompletingRebalance,
        and old clients send no member id with them.
        """
        member_id, instance_id = committer.member_id, committer.instance_id
        generation_id = committer.generation_id
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation_id < 0 and not member_id and instance_id is None:
            is_allowed = committer.is_transactional
            return ErrorCode.NONE if is_allowed else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            is_allowed = committer.is_transactional
            return ErrorCode.NONE if is_allowed else ErrorCode.REBALANCE_IN_PROGRESS
        # In Stable and PreparingRebalance a commit counts as a heartbeat.
        member = self.roster.by_id[member_id]
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to, or None if unknown: it may be any topic.

        Groups whose protocol type is not `consumer` subscribe to nothing.
        """
        if self.protocol_type != CONSUMER:
            return frozenset()
        topics: set[str] = set()
        for metadata in self._subscriptions():
            parsed = consumer_protocol.subscribed_topics(metadata)
            if parsed is None:
                return None
            topics |= parsed
        return frozenset(topics)

    def _subscriptions(self) -> set[bytes]:
        """Return the distinct metadata of the members: in most groups it is the same for all.

        A member that joined again may not support the protocol of the last generation. Then the
        metadata of its other protocols counts.
        """
        subscriptions: set[bytes] = set()
        for member in self.roster.by_id.values():
            in_use = [metadata for name, metadata in member.protocols if name == self.protocol_name]
            subscriptions.update(in_use or [metadata for _, metadata in member.protocols])
        return subscriptions

    def expires_from_ms(self, commit_ms: int) -> int | None:
        """Return when retention starts: when the group became Empty, or at the commit for simple
        consumers and for Stable groups of consumers. Nothing expires during a rebalance."""
        if self.state is GroupState.EMPTY:
            return commit_ms if self.protocol_type is None else self.state_since_ms
        is_stable = self.state is GroupState.STABLE
        return commit_ms if is_stable and self.protocol_type == CONSUMER else None

    @property
    def is_forgettable(self) -> bool:
        return self.state is GroupState.EMPTY and not self.roster.pending

    @property
    def subscribes(self) -> bool:
        return self.protocol_type == CONSUMER

    @property
    def size(self) -> int:
        return len(self.roster)

    def owners(self) -> list[PartitionOwner]:
        return owners_in(self._record(self.revision))

    def describe(self) -> GroupView:
        """Metadata and assignments are shown only when Stable; before that they are not final."""
        stable = self.state is GroupState.STABLE
        return GroupView(
            group_id=self.group_id,
            state=self.state,
            identity=self.identity,
            generation_id=self.generation_id,
            leader=self.roster.leader or "",
            protocol_type=self.protocol_type or "",
            protocol_name=(self.protocol_name or "") if stable else "",
            members=tuple(
                MemberView(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(self.protocol_name) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in self.roster.by_id.values()
            ),
        )

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, self.protocol_type or "", self.state)

    # --- events from outside ---

    def _timer_fired(self, event: TimerFired) -> None:
        key = event.key
        if not self.is_due(key):
            return
        match key.kind:
            case TimerKind.SESSION:
                sessions.session_timer_fired(self, key.member_id)
            case TimerKind.PENDING_MEMBER:
                sessions.pending_timer_fired(self, key.member_id)
            case TimerKind.NEW_MEMBER:
                sessions.new_member_timer_fired(self, key.member_id)
            case TimerKind.INITIAL_DELAY:
                join.initial_delay_over(self)
            case TimerKind.JOIN:
                join.complete(self)
            case TimerKind.SYNC:
                sync.sync_timer_fired(self)
            case TimerKind.PERSIST_RETRY:
                sessions.retry_timer_fired(self)

    def _persisted(self, event: Persisted) -> None:
        for reason in self.end_write(event.revision):
            match reason:
                case SaveAssignments():
                    sync.assignments_stored(self, reason, event.error)
                case SaveReplacement():
                    join.replacement_stored(self, reason, event.error)
                case DeleteGroup():
                    self.deleted(reason, event.error)
                case SaveGroup():
                    sessions.saved(self, event.error)
        self.begin_write()

    converted_by = ConsumerHeartbeat
    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        Join: join.join,
        ShareHeartbeat: refuse_share_member,
        Sync: sync.sync,
        Leave: sessions.leave,
        Delete: sessions.delete,
        TimerFired: _timer_fired,
        Persisted: _persisted,
    }
