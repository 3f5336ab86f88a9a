"""The slots of a worker: taken, loaded, and taken again whenever the store may think otherwise.

    load ──▶ settled ── reconnected, or a write was fenced ──▶ taken again
                ▲                                                │
                ├──────────── the store is as it was ────────────┤
                ├── written again ◀── it forgot some of it ──────┤
                └── loaded ◀── given up ◀── another took it ─────┘

A living owner's memory is newer than a store that lost its tail, so the owner writes again what
differs: records of groups and transactional ids, committed and pending offsets, deletions. Until
that is done commits and markers are refused (COORDINATOR_LOAD_IN_PROGRESS), and what transactions
have to store waits; heartbeats, joins and reads are answered from memory.

A slot that another worker took is given up (NOT_COORDINATOR). By placement it is still ours: after
a moment it is taken back and loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from moldau.broker.coordinator.groups.serialization import loaded_group, offset_fields, owners_of
from moldau.broker.errors import StoreFault, StoreFenced, StoreTimeout
from moldau.broker.group.effects import Effect
from moldau.broker.group.groups import Groups
from moldau.broker.group.machine import Machine
from moldau.broker.group.record import ConsumerRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import Owners
from moldau.broker.store.groups import GroupStore, StoredFacts

logger = logging.getLogger("moldau.coordinator")

RETRY_S = 0.5
TAKE_BACK_S = 1.0  # two that both think a slot theirs do not take it from each other in a loop
AT_ONCE = 64  # groups that are compared and written in one go
_T = TypeVar("_T")


class Shell(Protocol):
    """What the coordinator does for its slots."""

    def now_ms(self) -> int: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def run(self, effects: Iterable[Effect]) -> None: ...

    async def persist_now(self, effects: Iterable[Effect]) -> None: ...

    async def stored(self, group_id: str, owners: Owners | None) -> None: ...


class Guest(Protocol):
    """What else lives in the slots, and is loaded after their groups: transactions."""

    def start_loading(self, slot: int) -> None: ...

    async def read(self, slot: int) -> Any:
        """What is stored. Raises StoreFault."""

    def loaded(self, slot: int, found: Any) -> None:
        """`found`, by `read`, while the slot was ours."""

    def give_up(self, slot: int) -> None: ...

    async def write_again(self, slot: int) -> int:
        """How many differed. Raises StoreFault."""


class Slots:
    def __init__(
        self, shell: Shell, store: GroupStore, groups: Groups, numbers: Sequence[int], worker: int
    ) -> None:
        self._shell = shell
        self._store = store
        self._groups = groups
        self.numbers = numbers
        self._owner = f"worker {worker}, process {os.getpid()} on {socket.gethostname()}"
        self._token: bytes | None = None  # the store's history under which we last took slots
        self._untaken: set[int] = set()  # to be taken again
        self._behind: set[int] = set()  # of which the store may have lost something
        self._mended = asyncio.Event()
        self._mended.set()
        self._guest: Guest | None = None
        store.on_reconnected = self._reconnected
        for slot in numbers:
            groups.start_loading(slot)

    def host(self, guest: Guest) -> None:
        """Before anything is loaded."""
        self._guest = guest
        for slot in self.numbers:
            guest.start_loading(slot)

    def is_settled(self, slot: int) -> bool:
        """Nothing has to be written again before anything new."""
        return slot not in self._behind

    # --- loading and giving up ---

    async def load(self) -> None:
        """Load our slots, one by one; each is served as soon as it is loaded (behaviour 2.26)."""
        await _retry("groups", lambda: self._store.take(self.numbers, self._owner))
        self._token = self._store.history_token
        for slot in self.numbers:
            await self._load(slot)

    async def _load(self, slot: int) -> None:
        while True:
            if not self._store.held(slot):
                await _retry(f"slot {slot}", partial(self._store.take, [slot], self._owner))
            epoch = self._store.held(slot)
            stored = await _retry(f"slot {slot}", partial(self._store.load, slot))
            found = [loaded_group(one) for one in stored]
            for one in found:
                # The worker before us may have died between storing it and this call.
                if (owners := owners_of(one)) is not None:
                    await self._shell.stored(one.group_id, owners)
            guest, with_guest = self._guest, None
            if guest is not None:
                with_guest = await _retry(f"slot {slot}", partial(guest.read, slot))
            newest = max((one.record.generation_id for one in found if one.record), default=0)
            try:
                await self._store.note_generation(slot, newest)
            except StoreFault as fault:  # without it the next floor is the minutes since 2020
                logger.warning("slot %d: its highest generation is not noted: %s", slot, fault)
            if self._store.held(slot) == epoch:
                break  # else it was taken again meanwhile, perhaps from another owner
        floor = self._store.floor(slot)
        self._shell.run(self._groups.finish_loading(slot, found, self._shell.now_ms(), floor))
        for one in found:
            group = self._groups.by_id.get(one.group_id)
            if isinstance(one.record, ConsumerRecord) and group is not None:
                owners = Owners(group.subscribed_topics(), group.owners)
                await self._shell.stored(one.group_id, owners)
        if guest is not None:
            guest.loaded(slot, with_guest)

    def give_up(self) -> None:
        """The worker stops: parked requests get NOT_COORDINATOR (behaviour 2.27)."""
        for slot in self.numbers:
            self._give_up(slot)

    def _give_up(self, slot: int) -> None:
        self._shell.run(self._groups.give_up(slot, self._shell.now_ms()))
        if self._guest is not None:
            self._guest.give_up(slot)

    async def _take_back(self, slot: int) -> None:
        await asyncio.sleep(TAKE_BACK_S)
        self._groups.start_loading(slot)
        if self._guest is not None:
            self._guest.start_loading(slot)
        await self._load(slot)

    # --- taking again ---

    def _reconnected(self) -> None:
        self._untaken.update(slot for slot in self.numbers if self._store.held(slot))
        if self._token is not None and self._store.history_token != self._token:
            self._token = self._store.history_token
            self._behind.update(self._untaken)
        self._mend()

    def fenced(self, slot: int) -> None:
        """The store refused a write of this slot."""
        if self._store.held(slot):  # else it has been given up
            self._untaken.add(slot)
            self._mend()

    @property
    def is_current(self) -> bool:
        """What is known of them holds for the store as it is now."""
        return self.is_mended and self._store.history_token == self._token

    @property
    def is_mended(self) -> bool:
        return self._mended.is_set()

    async def mended(self, within_s: float | None = None) -> None:
        """Until every slot is taken again and written again, or given up. Raises StoreTimeout."""
        if self._mended.is_set():
            return
        try:
            await asyncio.wait_for(self._mended.wait(), within_s)
        except TimeoutError:
            raise StoreTimeout("the slots of groups could not be taken again in time") from None

    async def written(self, within_s: float) -> None:
        """Until the store has all that we know, if it is about to get it again: before the slots
        are given up, as nothing else has what it lost."""
        try:
            async with asyncio.timeout(within_s):
                await self._store.wait_up()
                await self._mended.wait()
        except TimeoutError:
            logger.warning(
                "groups: the store was not back within %g s of the stop: what it lost of them "
                "since they were last stored stays lost",
                within_s,
            )

    async def store_lost_history(self) -> None:
        """The store came back with another history, or was emptied: it has what it had once, or
        nothing. Returns when it has all that we know."""
        self._untaken.update(slot for slot in self.numbers if self._store.held(slot))
        self._behind.update(self._untaken)
        self._mend()
        await self.mended()

    def _mend(self) -> None:
        if self._mended.is_set() and (self._untaken or self._behind):
            self._mended.clear()
            self._shell.spawn(self._mend_all())

    async def _mend_all(self) -> None:
        try:
            while self._untaken or self._behind:
                try:
                    await self._take_again()
                    await self._write_again()
                except StoreFenced:
                    self._untaken |= self._behind
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
            self._mended.set()

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
                self._behind.add(slot)

    def _overtaken(self, slot: int) -> None:
        logger.warning(
            "slot %d has been taken by another worker: its groups and transactions are given up",
            slot,
        )
        self._behind.discard(slot)
        self._store.forget(slot)
        if self._groups.is_loaded(slot):  # else it is just being loaded, which begins again
            self._give_up(slot)
            self._shell.spawn(self._take_back(slot))

    # --- writing again ---

    async def _write_again(self) -> None:
        slots = sorted(self._behind)
        written = 0
        for slot in slots:
            if self._groups.is_loaded(slot):  # else it is loaded from the store as it is now
                written += await self._write_slot(slot)
                if self._guest is not None:
                    written += await self._guest.write_again(slot)
            self._behind.discard(slot)
        if written:
            logger.warning(
                "the store had lost something of %d groups and transactional ids: written again",
                written,
            )

    async def _write_slot(self, slot: int) -> int:
        """How many groups differed."""
        written = 0
        listed = await self._store.index(slot)
        groups = self._groups.of_slot(slot)
        for start in range(0, len(groups), AT_ONCE):
            some = groups[start : start + AT_ONCE]
            facts = await self._store.facts([(slot, group.group_id) for group in some])
            outcomes = await asyncio.gather(
                *(self._write_group(slot, *pair) for pair in zip(some, facts, strict=True))
            )
            written += sum(outcomes)
        for group_id in listed:
            if group_id not in self._groups.offsets:  # its deletion was lost
                (facts_of_it,) = await self._store.facts([(slot, group_id)])
                identity = (facts_of_it.identity or b"").decode()
                await self._store.remove(slot, group_id, identity)
                written += 1
        return written

    async def _write_group(self, slot: int, group: Machine, stored: StoredFacts) -> bool:
        group_id = group.group_id
        if self._groups.by_id.get(group_id) is not group or group.state is GroupState.DEAD:
            return False
        known = offset_fields(self._groups.offsets[group_id])
        lost = dict(known.items() - stored.offsets.items())
        removed = stored.offsets.keys() - known.keys()
        if lost:
            await self._store.save_offsets(slot, group_id, lost)
        if removed:
            await self._store.drop_offsets(slot, group_id, removed)
        is_stored = stored[:2] == (group.identity.encode(), group.revision)
        if not is_stored:  # behind a write in flight, which may have come before the loss
            await self._shell.persist_now(group.store_again(self._shell.now_ms()))
        return bool(lost or removed or not is_stored)


async def _retry(what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await ask()
        except StoreFault as fault:
            logger.warning("%s: waiting for the store: %s", what, fault)
            await asyncio.sleep(RETRY_S)
