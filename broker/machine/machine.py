"""The base of every state machine: effects, timers, and one write at a time."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

from moldau.broker.machine.effects import ArmTimer, CancelTimer, Reply, TimerKey

E = TypeVar("E")  # effects
W = TypeVar("W")  # what a write in flight stands for


class Machine(Generic[E, W]):
    """`now_ms` is epoch milliseconds and never goes back: the coordinator reads the wall clock
    once, at startup, and adds the monotonic clock."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.now_ms = now_ms
        self.effects: list[Any] = []
        self.revision = 0
        """The revision of the last write that was begun."""
        self.write: W | None = None
        """The write in flight."""
        self._armed: dict[TimerKey, int] = {}

    # --- effects ---

    def reply(self, call: object, answer: Any) -> None:
        self.effects.append(Reply(call, answer))

    def take_effects(self) -> list[E]:
        effects = self.effects
        self.effects = []
        return effects

    # --- timers ---

    def arm(self, kind: StrEnum, at_ms: int, member_id: str = "") -> None:
        key = TimerKey(self.name, kind, member_id)
        self._armed[key] = at_ms
        self.effects.append(ArmTimer(key, at_ms))

    def arm_by(self, kind: StrEnum, at_ms: int) -> None:
        """Arm a lazy timer: one that is armed for an earlier time stays, and is armed again when it
        fires and nothing is due."""
        armed = self._armed.get(TimerKey(self.name, kind))
        if armed is None or armed > at_ms:
            self.arm(kind, at_ms)

    def cancel(self, kind: StrEnum, member_id: str = "") -> None:
        key = TimerKey(self.name, kind, member_id)
        if self._armed.pop(key, None) is not None:
            self.effects.append(CancelTimer(key))

    def cancel_all_timers(self) -> None:
        self.effects.extend(CancelTimer(key) for key in self._armed)
        self._armed.clear()

    def is_due(self, key: TimerKey) -> bool:
        """Whether a timer that fired is to be acted on; it is then no longer armed."""
        at_ms = self._armed.get(key)
        if at_ms is None:
            return False
        if self.now_ms < at_ms:  # the event loop's clock is coarser than ours
            self.effects.append(ArmTimer(key, at_ms))
            return False
        del self._armed[key]
        return True

    # --- writes ---

    def write_begins(self, write: W) -> int:
        """Note the write in flight; returns the revision for its `Persist`."""
        self.revision += 1
        self.write = write
        return self.revision

    def write_ended(self, revision: int) -> W | None:
        """Return the write that ended. None: this is not the revision of the write in flight."""
        if revision != self.revision:
            return None
        write, self.write = self.write, None
        return write
