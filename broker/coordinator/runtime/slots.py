"""The slots of a worker: taken, loaded, and taken again whenever the store may think otherwise.

    load ──▶ current ── reconnected, or a write was fenced ──▶ taken again
                ▲                                                │
                ├──────────── the store is as it was ────────────┤
                ├── written again ◀── it forgot some of it ──────┤
                └── loaded ◀── given up ◀── another took it ─────┘

A living owner's memory is newer than a store that lost its tail, so the owner writes all
differences again: records of groups and transactional ids, offsets, deletions. Until then commits
and markers are refused (COORDINATOR_LOAD_IN_PROGRESS), and writes of transactions wait; heartbeats,
joins and reads are answered from memory.

A slot that another worker took is given up (NOT_COORDINATOR). By placement it is still ours: after
a moment it is taken back and loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from moldau.broker.errors import StoreFault, StoreFenced, StoreTimeout
from moldau.broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")

RETRY_S = 0.5
TAKE_BACK_S = 1.0  # two that both think a slot theirs do not take it from each other in a loop
_T = TypeVar("_T")
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class SlotTenant(Protocol):
    """A coordinator whose machines live in the slots. Tenants are served in the order in which they
    were added: groups first."""

    def start_loading(self, slot: int) -> None: ...

    async def read(self, slot: int) -> Any:
        """Read the stored machines of a slot. Raises StoreFault."""

    async def loaded(self, slot: int, found: Any) -> None:
        """Restore the machines that `read` found; the slot was ours all the time."""

    def is_loaded(self, slot: int) -> bool: ...

    def give_up(self, slot: int) -> None: ...

    async def write_again(self, slot: int) -> int:
        """Write lost records again; returns how many differed. Raises StoreFault."""


class Slots:
    def __init__(
        self, store: GroupStore, numbers: Sequence[int], worker: int, spawn: Spawn
    ) -> None:
        self._store = store
        self._spawn = spawn
        self.numbers = numbers
        self._owner = f"worker {worker}, process {os.getpid()} on {socket.gethostname()}"
        self._store_id: bytes | None = None  # the id of the store when we last took slots
        self._untaken: set[int] = set()  # to be taken again
        self._stale: set[int] = set()  # the store may have lost something of these
        self._reacquired = asyncio.Event()
        self._reacquired.set()
        self._tenants: list[SlotTenant] = []
        store.on_reconnected = self._reconnected

    def add(self, tenant: SlotTenant) -> None:
        """Add a tenant, before anything is loaded."""
        self._tenants.append(tenant)
        for slot in self.numbers:
            tenant.start_loading(slot)

    @property
    def store_id(self) -> bytes:
        """The id of the store, as this connection sees it."""
        return self._store.store_id

    def taken(self, slot: int) -> bytes | None:
        """The epoch that writes compare; None: the slot is not taken on this connection."""
        return self._store.taken(slot)

    def is_stale(self, slot: int) -> bool:
        """True if the store may have lost something of the slot that has to be written first."""
        return slot in self._stale

    # --- loading and giving up ---

    async def load(self) -> None:
        """Load our slots, one by one; each is served as soon as it is loaded."""
        await _retry("groups", lambda: self._store.take(self.numbers, self._owner))
        self._store_id = self._store.store_id
        for slot in self.numbers:
            await self._load(slot)

    async def _load(self, slot: int) -> None:
        while True:
            if not self._store.held(slot):
                await _retry(f"slot {slot}", partial(self._store.take, [slot], self._owner))
            epoch = self._store.held(slot)
            found = [
                await _retry(f"slot {slot}", partial(tenant.read, slot)) for tenant in self._tenants
            ]
            if self._store.held(slot) == epoch:
                break  # else it was taken again meanwhile, perhaps from another owner
        for tenant, of_tenant in zip(self._tenants, found, strict=True):
            await tenant.loaded(slot, of_tenant)

    def give_up(self) -> None:
        """The worker stops: parked requests get NOT_COORDINATOR."""
        for slot in self.numbers:
            self._give_up(slot)

    def _give_up(self, slot: int) -> None:
        for tenant in self._tenants:
            tenant.give_up(slot)

    async def _take_back(self, slot: int) -> None:
        await asyncio.sleep(TAKE_BACK_S)
        for tenant in self._tenants:
            tenant.start_loading(slot)
        await self._load(slot)

    # --- taking again ---

    def _reconnected(self) -> None:
        self._untaken.update(slot for slot in self.numbers if self._store.held(slot))
        if self._store_id is not None and self._store.store_id != self._store_id:
            self._store_id = self._store.store_id
            self._stale.update(self._untaken)
        self._reacquire()

    def fenced(self, slot: int) -> None:
        """The store refused a write of this slot."""
        if self._store.held(slot):  # else it has been given up
            self._untaken.add(slot)
            self._reacquire()

    @property
    def is_current(self) -> bool:
        """What is known of them holds for the store as it is now."""
        return self.is_reacquired and self._store.store_id == self._store_id

    @property
    def is_reacquired(self) -> bool:
        return self._reacquired.is_set()

    async def wait_reacquired(self, within_s: float | None = None) -> None:
        """Wait until every slot is re-acquired and written again, or lost. Raises StoreTimeout."""
        if self._reacquired.is_set():
            return
        try:
            await asyncio.wait_for(self._reacquired.wait(), within_s)
        except TimeoutError:
            raise StoreTimeout("the slots of groups could not be taken again in time") from None

    async def written(self, within_s: float) -> None:
        """Wait until all lost records are written again: before the slots are given up, as they are
        nowhere else."""
        try:
            async with asyncio.timeout(within_s):
                await self._store.wait_up()
                await self._reacquired.wait()
        except TimeoutError:
            logger.warning(
                "groups: the store was not back within %g s of the stop: their changes that it "
                "lost stay lost",
                within_s,
            )

    async def store_changed(self) -> None:
        """The store has changed or was emptied: re-acquire the slots, and write lost records again.
        Returns when that is done."""
        self._untaken.update(slot for slot in self.numbers if self._store.held(slot))
        self._stale.update(self._untaken)
        self._reacquire()
        await self.wait_reacquired()

    def _reacquire(self) -> None:
        if self._reacquired.is_set() and (self._untaken or self._stale):
            self._reacquired.clear()
            self._spawn(self._reacquire_all())

    async def _reacquire_all(self) -> None:
        try:
            while self._untaken or self._stale:
                try:
                    await self._take_again()
                    await self._write_again()
                except StoreFenced:
                    self._untaken |= self._stale
                except StoreFault as fault:
                    if not self._store.is_up:
                        await self._store.wait_up()
                    else:
                        logger.warning("groups: waiting for the store: %s", fault)
                        await asyncio.sleep(RETRY_S)
                except Exception:
                    # A defect of ours: without another attempt the slots would stay refused.
                    logger.exception("slots of groups could not be taken again")
                    await asyncio.sleep(RETRY_S)
        finally:
            self._reacquired.set()

    async def _take_again(self) -> None:
        slots = sorted(self._untaken)
        if not slots:
            return
        held = {slot: self._store.held(slot) for slot in slots}
        for slot, taken in (await self._store.take(slots, self._owner)).items():
            self._untaken.discard(slot)
            if not taken.epoch:
                self._overtaken(slot)
            elif taken.before < held[slot]:
                self._stale.add(slot)

    def _overtaken(self, slot: int) -> None:
        logger.warning(
            "slot %d has been taken by another worker: its groups and transactions are given up",
            slot,
        )
        self._stale.discard(slot)
        self._store.forget(slot)
        if any(tenant.is_loaded(slot) for tenant in self._tenants):
            # Otherwise it is just being loaded, and that begins again.
            self._give_up(slot)
            self._spawn(self._take_back(slot))

    # --- writing again ---

    async def _write_again(self) -> None:
        slots = sorted(self._stale)
        written = 0
        for slot in slots:
            for tenant in self._tenants:
                if tenant.is_loaded(slot):  # else it is loaded from the store as it is now
                    written += await tenant.write_again(slot)
            self._stale.discard(slot)
        if written:
            logger.warning(
                "the store had lost something of %d groups and transactional ids: written again",
                written,
            )


async def _retry(what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await ask()
        except StoreFault as fault:
            logger.warning("%s: waiting for the store: %s", what, fault)
            await asyncio.sleep(RETRY_S)
