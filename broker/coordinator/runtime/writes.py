"""The writes of machines: to the store, and the outcome back as a `Persisted` event.

A write that is fenced, or whose slot is not taken on this connection, waits until the slots are
taken again, and is then repeated if the machine is still the one that asked for it. Callbacks
throughout: every transaction of every producer passes here several times, and a task for each write
would cost more than the write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from moldau.broker.coordinator.runtime.slots import RETRY_S
from moldau.broker.errors import (
    ErrorCode,
    SlotNotTaken,
    StoreFault,
    StoreFenced,
    StoreTimeout,
)
from moldau.broker.machine import Machine, Persist, Persisted
from moldau.broker.placement import slot_of

if TYPE_CHECKING:
    from moldau.broker.coordinator.runtime.runtime import Runtime

logger = logging.getLogger("moldau.coordinator")

REACQUIRE_PATIENCE_S = 15.0  # for slots to be taken again
AT_ONCE = 64  # records that are written again in one go
LOG_EVERY_S = 5.0

AnyMachine: TypeAlias = Machine[Any, Any]
Written = Callable[[StoreFault | None], None]


class Writes:
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
        name = effect.name
        self.under_way[name] = self.under_way.get(name, 0) + 1
        try:
            self._runtime.write(effect, partial(self._ended, name, done))
        except Exception:
            self._count_down(name)  # it was never begun
            raise

    def _ended(self, name: str, done: Written, fault: StoreFault | None) -> None:
        self._count_down(name)
        done(fault)

    def _count_down(self, name: str) -> None:
        left = self.under_way.pop(name) - 1
        if left:
            self.under_way[name] = left
        elif (waiting := self._waiting.pop(name, None)) is not None:
            waiting.set_result(None)

    def _written(self, effect: Persist, machine: AnyMachine, fault: StoreFault | None) -> None:
        if isinstance(fault, StoreFenced | SlotNotTaken):
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
        self._begin(effect, outcome.set_result)
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
