"""Records of transactional ids in Redis, as bytes: their meaning is known to `txn/` only.

They live in the slots of groups, behind the same fence (groups.py), and are written over the same
connection: a write of a worker that was replaced, or that a lost connection delivers late, is
refused. A record carries a revision, and one that is not newer is refused as well.

A transaction that cannot end stops every read_committed reader, and with them what would make room:
so its records are written even when the store is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from moldau.broker.errors import SlotNotTaken
from moldau.broker.store import keys
from moldau.broker.store.groups import GroupStore, Written, fenced
from moldau.broker.store.pipe import REPLY_TIMEOUT, Pipe, within
from moldau.broker.store.scripts import script

_SAVE = script("transaction_save")
_REMOVE = script("transaction_remove")
_SAVE_INTACT = script("slot_save_intact")
READ_AT_ONCE = 256  # records


class StoredTransaction(NamedTuple):
    """A record as it is stored, not decoded."""

    transactional_id: str
    record: bytes


class TransactionStore:
    """The transactional ids in the slots of one worker, which `groups` takes."""

    def __init__(self, groups: GroupStore, pipe: Pipe) -> None:
        self._groups = groups
        self._pipe = pipe

    # --- reading ---

    async def load(self, slot: int) -> list[StoredTransaction]:
        """All records of a slot that was taken."""
        ids = await self.index(slot)
        found: list[StoredTransaction] = []
        for start in range(0, len(ids), READ_AT_ONCE):
            some = ids[start : start + READ_AT_ONCE]
            found += [
                StoredTransaction(transactional_id, record)
                for transactional_id, record in zip(
                    some, await self._read(slot, some, "record"), strict=True
                )
                if record is not None
            ]
        return found

    async def load_one(self, slot: int, transactional_id: str) -> bytes | None:
        """Load one record, after all writes that were sent before."""
        (record,) = await self._read(slot, [transactional_id], "record")
        return record

    async def index(self, slot: int) -> list[str]:
        """The transactional ids of a slot."""
        return [name.decode() for name in await self._pipe.ask("SMEMBERS", keys.transactions(slot))]

    async def revisions(self, slot: int, transactional_ids: Sequence[str]) -> list[int]:
        """The stored revisions; 0: nothing is stored."""
        return [int(one or 0) for one in await self._read(slot, transactional_ids, "revision")]

    async def _read(
        self, slot: int, transactional_ids: Sequence[str], field: str
    ) -> list[bytes | None]:
        calls = asyncio.gather(
            *(
                self._pipe.call("HGET", keys.transaction(slot, transactional_id), field)
                for transactional_id in transactional_ids
            )
        )
        replies: list[bytes | None] = await within(REPLY_TIMEOUT, calls)
        return replies

    # --- intact under which store id ---

    async def last_intact(self, slot: int) -> bytes:
        """The store id under which the slot was last known to have all its records; empty:
        never."""
        return await self._pipe.ask("HGET", keys.slot(slot), "txns") or b""

    @property
    def store_id(self) -> bytes:
        """The store id that the present connection has read."""
        return self._pipe.store_id

    async def save_intact(self, slot: int, store_id: bytes) -> None:
        """Save that the slot has all its records under this store id. Raises StoreFault."""
        epoch = self._groups.taken(slot)
        if epoch is None:
            raise SlotNotTaken(f"slot {slot} is being taken")
        if await self._pipe.ask("EVAL", _SAVE_INTACT, 1, keys.slot(slot), epoch, store_id) < 0:
            raise fenced(slot)

    def taken(self, slot: int) -> bytes | None:
        """The epoch that writes compare; None: the slot is not taken on this connection."""
        return self._groups.taken(slot)

    # --- writing ---

    def save(
        self, slot: int, transactional_id: str, revision: int, record: bytes, done: Written
    ) -> None:
        """Save a record; see `GroupStore.begin`."""
        self._write(_SAVE, slot, transactional_id, revision, done, record)

    def remove(self, slot: int, transactional_id: str, revision: int, done: Written) -> None:
        """Remove a record, unless the store has a newer one."""
        self._write(_REMOVE, slot, transactional_id, revision, done)

    def _write(
        self,
        script: str,
        slot: int,
        transactional_id: str,
        revision: int,
        done: Written,
        *record: bytes,
    ) -> None:
        names = (keys.transactions(slot), keys.transaction(slot, transactional_id))
        self._groups.begin(script, slot, names, (transactional_id, revision, *record), done)
