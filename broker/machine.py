"""The base of every coordinated state machine: effects, events, timers, one write at a
time, and the table of a worker's machines by name and slot. No I/O, no clock.

The runtime runs effects in their order. A `Reply` that promises something durable is emitted only
after the `Persisted` event for it, so the runtime never has to hold one back. Each room adds its
own: what it persists, and what only it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from moldau.broker.errors import ErrorCode

A = TypeVar("A")


class TimerKey(NamedTuple):
    """Identifies a timer. Arming a key that is armed moves it."""

    name: str
    """The group id or transactional id."""
    kind: StrEnum
    member_id: str = ""
    """The member whose timer it is; empty for the timers of the machine itself."""


# --- effects ---


class Reply(Struct, Generic[A], frozen=True):
    """Answer the request with this reply handle; exactly one for each request."""

    call: object
    answer: A


class Persist(Struct, frozen=True):
    """Store the machine, then send it `Persisted(revision, …)`, whatever the outcome.

    A machine has at most one write in flight. Revisions grow with every write,
    across restarts too, so the store can refuse a write that arrives late. The outcome is not sent
    to a machine that was given up or reloaded meanwhile: it may use the same revisions again.
    """

    name: str
    revision: int


class ArmTimer(Struct, frozen=True):
    """Send `TimerFired(key)` at that time."""

    key: TimerKey
    at_ms: int


class CancelTimer(Struct, frozen=True):
    """Only sent for a key that is armed."""

    key: TimerKey


class Failed(Struct, frozen=True):
    """An exception left the machine half changed: refuse waiting requests, and reload it."""

    name: str
    defect: Exception


# --- events ---


class Persisted(Struct, frozen=True):
    """The outcome of the `Persist` effect with this revision.

    `error` goes to the clients that wait for the write: COORDINATOR_NOT_AVAILABLE when it failed or
    its outcome is unknown.
    """

    revision: int
    error: ErrorCode = ErrorCode.NONE


class TimerFired(Struct, frozen=True):
    """An armed timer is due. One that was cancelled or moved in the meantime is ignored."""

    key: TimerKey


E = TypeVar("E")  # effects
W = TypeVar("W")  # the reasons of a write in flight


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


T = TypeVar("T")


class SlotTable(Generic[T]):
    """Read `by_id` freely; change it with `put` and `drop`."""

    def __init__(self, slot_of: Callable[[str], int]) -> None:
        self._slot_of = slot_of
        self._loaded: dict[int, bool] = {}
        self._by_slot: dict[int, dict[str, T]] = {}
        self.by_id: dict[str, T] = {}
        self._reloading: set[str] = set()

    # --- machines ---

    def put(self, name: str, one: T) -> None:
        self.by_id[name] = one
        self._by_slot.setdefault(self._slot_of(name), {})[name] = one

    def drop(self, name: str) -> None:
        del self.by_id[name]
        del self._by_slot[self._slot_of(name)][name]

    def of_slot(self, slot: int) -> list[T]:
        return list(self._by_slot.get(slot, {}).values())

    # --- failures ---

    @staticmethod
    def guarded(name: str, step: Callable[[], list[Any]]) -> list[Any]:
        """Run a step of one machine among many: its exception must not stop the others."""
        try:
            return step()
        except Exception as defect:
            return [Failed(name, defect)]

    def start_reloading(self, name: str) -> None:
        """Drop a machine that an exception left half changed: the store has the state before."""
        if name in self.by_id:
            self.drop(name)
        self._reloading.add(name)

    def is_reloading(self, name: str) -> bool:
        return name in self._reloading

    # --- slots ---

    def start_loading(self, slot: int) -> None:
        self._loaded[slot] = False

    def _finish_loading(self, slot: int) -> None:
        self._loaded[slot] = True

    def _give_up(self, slot: int) -> list[T]:
        """Make the slot foreign; returns the machines that were in it."""
        self._loaded.pop(slot, None)
        given_up = self._by_slot.pop(slot, {})
        for name in given_up:
            del self.by_id[name]
        self._reloading = {one for one in self._reloading if self._slot_of(one) != slot}
        return list(given_up.values())

    def is_loaded(self, slot: int) -> bool:
        return self._loaded.get(slot, False)

    def availability(self, name: str) -> ErrorCode:
        """NONE if this worker owns the id, known or not; otherwise COORDINATOR_LOAD_IN_PROGRESS or
        NOT_COORDINATOR."""
        if name in self._reloading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.availability_of_slot(self._slot_of(name))

    def availability_of_slot(self, slot: int) -> ErrorCode:
        loaded = self._loaded.get(slot)
        if loaded is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def loading(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS while a list of all would be incomplete."""
        if all(self._loaded.values()) and not self._reloading:
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
