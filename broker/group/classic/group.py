"""`Group`: one classic consumer group. Events in, effects out; created, restored, unloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.group.classic import join, leave, rebalance, sessions, sync
from broker.group.classic.core import Core
from broker.group.classic.members import Member
from broker.group.classic.purposes import SaveAssignments, SaveReplacement
from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import Effect
from broker.group.events import (
    Delete,
    Event,
    Join,
    Leave,
    Persisted,
    Sync,
    TimerFired,
)
from broker.group.record import GroupRecord
from broker.group.states import GroupState
from broker.group.timers import TimerKind
from broker.group.writes import DeleteGroup, SaveGroup


class Group(Core):
    """A classic consumer group; `states.GroupState` documents what it does in each state.

    `now_ms` is epoch milliseconds and must never go back: the coordinator reads the wall clock
    once, at its start, and adds the monotonic clock. A group never keeps an event or an effect.
    """

    @classmethod
    def create(
        cls, group_id: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> tuple[Group, list[Effect]]:
        """A new group: Empty, generation 0. Its identity is stored at once."""
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
        generation_floor: int = 0,
    ) -> tuple[Group, list[Effect]]:
        """The group as it was stored. Sessions start again, nothing else changes."""
        group = cls(record.group_id, record.identity, config, ids, now_ms)
        group.state = record.state
        group.state_since_ms = record.state_since_ms
        group.generation_id = record.generation_id
        group.generation_floor = generation_floor
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.continue_revisions(record.revision)
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

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        _HANDLERS[type(event)](self, event)
        return self.take_effects()

    def store_again(self, now_ms: int) -> list[Effect]:
        """The store lost what it had of the group. In mid-rebalance its end brings a write."""
        self.now_ms = now_ms
        if self.state is not GroupState.DEAD:
            self.store(SaveGroup())
        return self.take_effects()

    def unload(self, now_ms: int) -> list[Effect]:
        """Unload the group: parked requests get NOT_COORDINATOR, all timers are cancelled.

        What is stored stays. The outcome of a write in flight need not be reported.
        """
        self.now_ms = now_ms
        leave.unload(self)
        return self.take_effects()

    @property
    def is_gone(self) -> bool:
        """Dead, and nothing is left to be done: drop it."""
        return self.state is GroupState.DEAD and self.is_at_rest

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
        for purpose in self.end_write(event.token):
            match purpose:
                case SaveAssignments():
                    sync.assignments_stored(self, purpose, event.error)
                case SaveReplacement():
                    join.replacement_stored(self, purpose, event.error)
                case DeleteGroup():
                    leave.deleted(self, purpose, event.error)
                case SaveGroup():
                    leave.saved(self, event.error)
        self.begin_write()


_HANDLERS: dict[type[Event], Callable[[Group, Any], None]] = {
    Join: join.join,
    Sync: sync.sync,
    Leave: leave.leave,
    Delete: leave.delete,
    TimerFired: Group._timer_fired,
    Persisted: Group._persisted,
}
