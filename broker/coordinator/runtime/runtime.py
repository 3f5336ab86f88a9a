"""The runtime of a coordinator: passes events to machines by name, and runs their effects.

A coordinator is a `Runtime` that knows how to store and restore its machines; README.md lists what
it has to provide. An exception in the middle of a transition leaves a machine in a state that no
rule describes. Its timers end, whoever waits is refused with COORDINATOR_NOT_AVAILABLE, and it is
reloaded from the store (`recovery.py`): nothing was promised that is not stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from moldau.broker.coordinator.runtime.recovery import Recovery
from moldau.broker.coordinator.runtime.slots import RETRY_S, Slots
from moldau.broker.errors import (
    ErrorCode,
    SlotNotTaken,
    StoreFault,
    StoreFenced,
    StoreTimeout,
)
from moldau.broker.machine import (
    ArmTimer,
    CancelTimer,
    Failed,
    Machine,
    Persist,
    Persisted,
    Reply,
    TimerFired,
    TimerKey,
)
from moldau.broker.placement import slot_of

logger = logging.getLogger("moldau.coordinator")

REACQUIRE_PATIENCE_S = 15.0  # for slots to be taken again
AT_ONCE = 64  # records that are written again in one go
LOG_EVERY_S = 5.0

AnyMachine: TypeAlias = Machine[Any, Any]
Written = Callable[[StoreFault | None], None]


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
    """The name of the machines in the log."""
    requests: ClassVar[frozenset[type]]
    """Events with a `call` that is to be answered."""

    def __init__(self, table: Table, slots: Slots, spawn: Spawn) -> None:
        self.table = table
        self.slots = slots
        self.spawn = spawn
        self._loop = asyncio.get_running_loop()
        # The wall clock once, the monotonic one from then on: a machine's time never goes back.
        self._started_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1000)
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
        """Restore the machines of a slot from the result of `read`."""

    @abstractmethod
    async def write_again(self, slot: int) -> int:
        """Write lost records of a slot again; returns how many differed. Raises StoreFault."""

    @abstractmethod
    async def read_one(self, slot: int, name: str) -> Any:
        """Read one machine. Raises StoreFault."""

    @abstractmethod
    def restore_one(self, name: str, found: Any, *, is_stale: bool) -> list[Any]:
        """Restore one machine from the result of `read_one`; returns its effects."""

    def unanswered(self, call: Any) -> None:
        """An answer could not be sent to this request."""

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Drop work that is under way for machines that failed or were given up."""

    # --- events and effects ---

    def now_ms(self) -> int:
        return self._started_ms + int(self._loop.time() * 1000)

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


class Writes:
    """Writes machines to the store, and sends them the outcome as a `Persisted` event.

    A write that is fenced, or whose slot is not taken on this connection, waits until the slots are
    taken again, and is then repeated if the machine is still the one that asked for it. Callbacks
    throughout: every transaction of every producer passes here several times, and a task for each
    write would cost more than the write.
    """

    def __init__(self, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._log_at = 0.0
        self.under_way: dict[str, int] = {}
        """How many writes there are by name: a group that changes its protocol may have two."""
        self._waiting: dict[str, asyncio.Future[None]] = {}  # for the last one of a name

    def persist(self, effect: Persist) -> None:
        machine = self._runtime.table.by_id[effect.name]
        slot = slot_of(effect.name)
        if self._runtime.may_write(slot):
            self._begin(effect, partial(self._written, effect, machine))
        else:
            fault = SlotNotTaken(f"slot {slot} is being written again")
            self._runtime.spawn(self._persist_later(effect, machine, fault))

    async def persist_now(self, effects: Iterable[Any]) -> int:
        """Run effects and write, once, while slots are taken again; returns the number of writes.
        Raises StoreFault."""
        writes = []
        for effect in effects:
            if isinstance(effect, Persist):
                writes.append(effect)
            else:
                self._runtime.run((effect,))
        for start in range(0, len(writes), AT_ONCE):
            some = writes[start : start + AT_ONCE]
            for fault in await asyncio.gather(*map(self._write_now, some)):
                if fault is not None:
                    raise fault
        return len(writes)

    async def ended(self, name: str) -> None:
        """Wait until no write of this machine is under way."""
        while name in self.under_way:
            if name not in self._waiting:
                self._waiting[name] = self._loop.create_future()
            await self._waiting[name]

    # --- one write ---

    def _begin(self, effect: Persist, done: Written) -> None:
        """Begin a write; `done` calls `_ended`."""
        name = effect.name
        self.under_way[name] = self.under_way.get(name, 0) + 1
        try:
            self._runtime.write(effect, done)
        except Exception:
            self._ended(name)  # it was never begun
            raise

    def _ended(self, name: str) -> None:
        left = self.under_way.pop(name) - 1
        if left:
            self.under_way[name] = left
        elif self._waiting and (waiting := self._waiting.pop(name, None)) is not None:
            waiting.set_result(None)

    def _written(self, effect: Persist, machine: AnyMachine, fault: StoreFault | None) -> None:
        self._ended(effect.name)
        if fault is not None and isinstance(fault, (StoreFenced, SlotNotTaken)):
            self._runtime.spawn(self._persist_later(effect, machine, fault))
        else:
            self._persisted(effect, machine, fault)

    async def _persist_later(self, effect: Persist, machine: AnyMachine, fault: StoreFault) -> None:
        """Write once the slot is taken again, if it still is this worker's then."""
        slots = self._runtime.slots
        if isinstance(fault, StoreFenced):
            slots.fenced(slot_of(effect.name))
        elif slots.is_reacquired:
            await asyncio.sleep(RETRY_S)  # not expected; certainly no reason to run in circles
        try:
            await slots.wait_reacquired(REACQUIRE_PATIENCE_S)
        except StoreTimeout as late:
            self._persisted(effect, machine, late)
            return
        if self._is_current(machine):
            self.persist(effect)

    async def _write_now(self, effect: Persist) -> StoreFault | None:
        machine = self._runtime.table.by_id.get(effect.name)
        if machine is None:
            return None  # given up meanwhile
        outcome: asyncio.Future[StoreFault | None] = self._loop.create_future()

        def done(fault: StoreFault | None) -> None:
            self._ended(effect.name)
            outcome.set_result(fault)

        self._begin(effect, done)
        fault = await outcome
        self._persisted(effect, machine, fault)
        return fault

    # --- outcomes ---

    def _is_current(self, machine: AnyMachine) -> bool:
        """It was not given up meanwhile, and perhaps loaded again with the same revisions."""
        return self._runtime.table.by_id.get(machine.name) is machine

    def _persisted(self, effect: Persist, machine: AnyMachine, fault: StoreFault | None) -> None:
        if not self._is_current(machine):
            return  # nobody waits for the outcome
        error = ErrorCode.NONE
        if fault is not None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._report(effect.name, fault)
        self._runtime.submit(effect.name, Persisted(effect.revision, error))

    def _report(self, name: str, fault: StoreFault) -> None:
        now = self._loop.time()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            kind = self._runtime.kind
            logger.warning("%s %s, and perhaps others, not stored: %s", kind, name, fault)
