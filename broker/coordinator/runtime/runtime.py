"""The runtime of a coordinator: passes events to machines by name, and runs their effects.

A coordinator is a `Runtime` that knows how to store and restore its machines; README.md lists what
it has to provide. An exception in the middle of a transition leaves a machine in a state that no
rule describes. Its timers end, whoever waits is refused with COORDINATOR_NOT_AVAILABLE, and it is
reloaded from the store (`recovery.py`): nothing was promised that is not stored.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from moldau.broker.coordinator.runtime.recovery import Recovery
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.coordinator.runtime.writes import Writes, Written
from moldau.broker.errors import ErrorCode
from moldau.broker.machine import (
    ArmTimer,
    CancelTimer,
    Failed,
    Machine,
    Persist,
    Reply,
    TimerFired,
    TimerKey,
)

logger = logging.getLogger("moldau.coordinator")

P = TypeVar("P", bound=Persist)
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Table(Protocol):
    """The machines of a worker: a `SlotTable` with the transitions of its room."""

    @property
    def by_id(self) -> Mapping[str, Machine[Any, Any]]: ...
    def handle(self, name: str, event: Any, now_ms: int) -> list[Any]: ...
    def start_loading(self, slot: int) -> None: ...
    def is_loaded(self, slot: int) -> bool: ...
    def give_up(self, slot: int, now_ms: int) -> list[Any]: ...
    def start_reloading(self, name: str) -> None: ...
    def is_reloading(self, name: str) -> bool: ...


class Runtime(ABC, Generic[P]):
    kind: ClassVar[str]
    """What the machines are, for the log."""
    requests: ClassVar[frozenset[type]]
    """Events with a `call` that is to be answered."""

    def __init__(self, table: Table, slots: Slots, spawn: Spawn) -> None:
        self.table = table
        self.slots = slots
        self.spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._open: dict[object, tuple[str, Any]] = {}  # requests that are not answered yet
        self.writes = Writes(self)
        self._recovery = Recovery(self)
        self._runners: dict[type, Callable[[Any], None]] = {
            ArmTimer: self._arm,
            CancelTimer: self._cancel_timer,
            Failed: self._run_failed,
            **self.runners(),
        }
        slots.add(self)

    # --- what an adapter provides ---

    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    def runners(self) -> dict[type, Callable[[Any], None]]:
        """How the effects of its own kinds are run. Its `Persist` is passed to `writes.persist`."""

    @abstractmethod
    def refusal(self, request: Any, error: ErrorCode) -> Any:
        """The answer that refuses this request."""

    @abstractmethod
    def write(self, effect: P, done: Written) -> None:
        """Write to the store; call `done` with the outcome, later."""

    def may_write(self, slot: int) -> bool:
        """False: writes of the slot wait until it has been written again."""
        return True

    @abstractmethod
    async def read(self, slot: int) -> Any:
        """Read a slot. Raises StoreFault."""

    @abstractmethod
    async def loaded(self, slot: int, found: Any) -> None:
        """Restore the machines of a slot from what `read` returned."""

    @abstractmethod
    async def write_again(self, slot: int) -> int:
        """Write what the store has lost of a slot; returns how many differed. Raises StoreFault."""

    @abstractmethod
    async def read_one(self, slot: int, name: str) -> Any:
        """Read one machine. Raises StoreFault."""

    @abstractmethod
    def restore_one(self, name: str, found: Any, *, is_stale: bool) -> list[Any]:
        """Restore one machine from what `read_one` returned; returns its effects."""

    def unanswered(self, call: Any) -> None:
        """An answer could not be sent to this request."""

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Drop work that is under way for machines that failed or were given up."""

    # --- events and effects ---

    def submit(self, name: str, event: Any) -> list[Any]:
        """Pass an event to its machine, and run its effects; returns them. A request is answered
        now or later."""
        if type(event) in self.requests:
            self._open[event.call] = name, event
        try:
            effects = self.table.handle(name, event, self.now_ms())
        except Exception as defect:
            self._failed(name, defect)
            return []
        self.run(effects)
        return effects

    def run(self, effects: Iterable[Any]) -> None:
        runners = self._runners
        for effect in effects:
            kind = type(effect)
            if kind is Reply:
                self._answer(effect.call, effect.answer)
                continue
            try:
                runners[kind](effect)
            except Exception as defect:
                # What is not begun would never end: the machine would wait for its outcome.
                self._failed(effect.name, defect)

    def _answer(self, call: Any, answer: Any) -> None:
        """Answer once: a request that was refused when its machine failed gets no other answer."""
        known = self._open.pop(call, None)
        if known is None:
            return
        try:
            call.answered(answer)
        except Exception:
            # The effects behind it must run: without a write, say, the machine could never write.
            logger.exception("%s %s: a request cannot be answered", self.kind, known[0])
            self.unanswered(call)

    # --- timers ---

    def _arm(self, effect: ArmTimer) -> None:
        key = effect.key
        self._cancel(key)
        delay = max(effect.at_ms - self.now_ms(), 0) / 1000
        self._timers[key] = self._loop.call_later(delay, self._fired, key)

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._cancel(effect.key)

    def _cancel(self, key: TimerKey) -> None:
        armed = self._timers.pop(key, None)
        if armed is not None:
            armed.cancel()

    def _fired(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        self.submit(key.name, TimerFired(key))

    # --- failures ---

    def _run_failed(self, effect: Failed) -> None:
        self._failed(effect.name, effect.defect)

    def _failed(self, name: str, defect: Exception) -> None:
        """A change was left half done: nothing of it is relied on."""
        logger.error("%s %s failed, and is reloaded", self.kind, name, exc_info=defect)
        self.forget(lambda other: other == name)
        self._recovery.start(name)
        self._abandon(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _abandon(self, name: str, error: ErrorCode) -> None:
        """End its timers, and refuse whoever waits."""
        for key in [key for key in self._timers if key.name == name]:
            self._cancel(key)
        for call, (owner, request) in list(self._open.items()):
            if owner == name:
                self._answer(call, self.refusal(request, error))

    # --- slots (`slots.SlotTenant`) ---

    def start_loading(self, slot: int) -> None:
        self.table.start_loading(slot)

    def is_loaded(self, slot: int) -> bool:
        return self.table.is_loaded(slot)

    def give_up(self, slot: int) -> None:
        """Another worker owns the slot from now on, or this one stops."""
        for effect in self.table.give_up(slot, self.now_ms()):
            if type(effect) is Failed:  # it is not ours any more: there is nothing to reload
                logger.error("%s %s failed", self.kind, effect.name, exc_info=effect.defect)
                self._abandon(effect.name, ErrorCode.NOT_COORDINATOR)
            else:
                self.run((effect,))
