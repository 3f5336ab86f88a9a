"""`Group` is one classic consumer group: events in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic import commits, join, leave, rebalance, sessions, sync
from moldau.broker.group.classic.group_data import GroupData
from moldau.broker.group.classic.members import Member
from moldau.broker.group.classic.writes import SaveAssignments, SaveReplacement
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import Effect
from moldau.broker.group.events import Delete, Event, Join, Leave, Sync
from moldau.broker.group.record import GroupRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.timers import TimerKind
from moldau.broker.group.views import GroupListing, GroupView, MemberView, PartitionOwner, owners_in
from moldau.broker.group.writes import DeleteGroup, SaveGroup
from moldau.broker.machine import Persisted, TimerFired
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
        leave.unload(self)

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
            self, member_id, instance_id, generation_id, now_ms, transactional=transactional
        )

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def subscribed_topics(self) -> frozenset[str] | None:
        return commits.subscribed_topics(self)

    def expires_from_ms(self, commit_ms: int) -> int | None:
        return commits.expires_from_ms(self, commit_ms)

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
                rebalance.initial_delay_over(self)
            case TimerKind.JOIN:
                rebalance.complete(self)
            case TimerKind.SYNC:
                sync.sync_timer_fired(self)
            case TimerKind.PERSIST_RETRY:
                leave.retry_timer_fired(self)

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
                    leave.saved(self, event.error)
        self.begin_write()

    handlers: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        Join: join.join,
        Sync: sync.sync,
        Leave: leave.leave,
        Delete: leave.delete,
        TimerFired: _timer_fired,
        Persisted: _persisted,
    }
