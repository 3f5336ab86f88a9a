"""What a group of any protocol has: identity, effects, timers, and one write at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import Answer, ArmTimer, CancelTimer, Effect, Persist, Reply
from broker.group.record import GroupRecord
from broker.group.timers import TimerKey, TimerKind
from broker.group.writes import DeleteGroup, Purpose, Writes


class Machine(ABC):
    def __init__(
        self, group_id: str, identity: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> None:
        self.group_id = group_id
        self.identity = identity
        self.config = config
        self.ids = ids
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self._writes = Writes()
        self._armed: dict[TimerKey, int] = {}
        self._extended: set[TimerKey] = set()
        """Timers that fired late and were armed once more."""

    @abstractmethod
    def _is_durable_point(self) -> bool:
        """True if the group can be stored as it is now."""

    @abstractmethod
    def _record(self, revision: int) -> GroupRecord:
        """The group as it is restored after a restart."""

    # --- effects ---

    def reply(self, call: object, answer: Answer) -> None:
        self.effects.append(Reply(call, answer))

    def take_effects(self) -> list[Effect]:
        effects = self.effects
        self.effects = []
        return effects

    # --- timers ---

    def arm(self, kind: TimerKind, at_ms: int, member_id: str = "") -> None:
        key = TimerKey(self.group_id, kind, member_id)
        self._extended.discard(key)
        self._armed[key] = at_ms
        self.effects.append(ArmTimer(key, at_ms))

    def cancel(self, kind: TimerKind, member_id: str = "") -> None:
        key = TimerKey(self.group_id, kind, member_id)
        if self._armed.pop(key, None) is not None:
            self._extended.discard(key)
            self.effects.append(CancelTimer(key))

    def cancel_all_timers(self) -> None:
        self.effects.extend(CancelTimer(key) for key in self._armed)
        self._armed.clear()
        self._extended.clear()

    def is_due(self, key: TimerKey) -> bool:
        """True if a timer that fired is to be acted on; it is then no longer armed."""
        at_ms = self._armed.get(key)
        if at_ms is None:
            return False
        if self.now_ms < at_ms:  # the event loop's clock is coarser than ours
            self.effects.append(ArmTimer(key, at_ms))
            return False
        late_ms = self.now_ms - at_ms
        if late_ms > self.config.late_timer_ms and key not in self._extended:
            self.arm(key.kind, self.now_ms + self.config.late_timer_grace_ms, key.member_id)
            self._extended.add(key)
            return False
        del self._armed[key]
        self._extended.discard(key)
        return True

    # --- writes ---

    def store(self, purpose: Purpose) -> None:
        """Store the group as it is now, or as it is when the write in flight has ended."""
        self._writes.waiting.append(purpose)
        self.begin_write()

    def store_later(self) -> None:
        """After a failed write that no other write follows."""
        self.arm(TimerKind.PERSIST_RETRY, self.now_ms + self.config.persist_retry_ms)

    def begin_write(self) -> None:
        """Start a write if one is wanted and none is in flight.

        In mid-rebalance there is nothing to write: what was wanted is out of date, and the end of
        the rebalance brings a write of its own.
        """
        writes = self._writes
        if writes.in_flight or not writes.waiting:
            return
        if any(type(purpose) is DeleteGroup for purpose in writes.waiting):
            self.effects.append(Persist(self.group_id, self.identity, writes.begin(), None))
        elif self._is_durable_point():
            token = writes.begin()
            record = self._record(token)
            self.effects.append(Persist(self.group_id, self.identity, token, record))
        else:
            writes.waiting.clear()

    @property
    def revision(self) -> int:
        """Of the last write that was begun."""
        return self._writes.revision

    @property
    def is_writing(self) -> bool:
        return bool(self._writes.in_flight)

    @property
    def is_at_rest(self) -> bool:
        """No write in flight and no timer armed: nothing will happen by itself."""
        return not self.is_writing and not self._armed

    def end_write(self, token: int) -> list[Purpose]:
        return self._writes.end(token)

    def abandon_writes(self) -> list[Purpose]:
        return self._writes.abandon()

    def continue_revisions(self, revision: int) -> None:
        self._writes = Writes(revision)
