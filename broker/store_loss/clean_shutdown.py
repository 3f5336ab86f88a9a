"""Which slots are known to have all of their transactional ids, so that a restart can prove it.

A store that comes back in another history may have lost its tail. A living owner writes again what
is missing. Without one it cannot be said which epochs were given out, and every producer has to be
fenced; unless the owner was stopped in order, and its last word, `CLOSED`, is still there: of what
came before it nothing is lost. The next owner takes that word back before anything else, and
confirms it, or a later loss could bring it back. Where the store confirms nothing it is not said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from moldau.broker.errors import StoreFault
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.transactions import TransactionStore

logger = logging.getLogger("moldau.coordinator")

CLOSED = b"closed in "  # followed by the history
WITHIN_S = 2.0


class LastIntact(NamedTuple):
    """The last history in which a slot was known to be whole."""

    store_id: bytes  # empty: it never was
    is_clean: bool  # and nothing of it was written since


class CleanShutdown:
    """Of the slots of one worker."""

    def __init__(
        self, store: TransactionStore, confirmation: Confirmation, slots: Sequence[int]
    ) -> None:
        self._store = store
        self._confirmation = confirmation
        self._slots = slots
        self._intact: dict[int, bytes] = {}  # slot -> in which history
        self._closed: dict[int, bytes] = {}  # as they were found

    async def last_intact(self, slot: int) -> LastIntact:
        """Raises StoreFault."""
        found = await self._store.last_intact(slot)
        if found.startswith(CLOSED):
            await self._reopen()
        if slot in self._closed:
            return LastIntact(self._closed[slot], True)
        return LastIntact(found, False)

    async def _reopen(self) -> None:
        """All that are closed, as a confirmation may take a second."""
        closed: dict[int, bytes] = {}
        for slot in self._slots:
            found = await self._store.last_intact(slot)
            if found.startswith(CLOSED):
                closed[slot] = found.removeprefix(CLOSED)
                await self._store.save_intact(slot, closed[slot])
        await self._confirmation.confirm()
        self._closed |= closed

    async def save_intact(self, slot: int, store_id: bytes) -> None:
        """It is whole in this store_id. Raises StoreFault."""
        await self._store.save_intact(slot, store_id)
        self.mark_intact(slot, store_id)

    def mark_intact(self, slot: int, store_id: bytes) -> None:
        self._intact[slot] = store_id
        self._closed.pop(slot, None)

    def unmark(self, slot: int) -> None:
        self._intact.pop(slot, None)

    async def close(self) -> None:
        """Nothing is written any more: the worker stops."""
        if not self._confirmation.means_something:
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                for slot, store_id in self._intact.items():
                    await self._store.save_intact(slot, CLOSED + store_id)
        except (TimeoutError, StoreFault) as fault:
            logger.warning("transactional ids: not closed in order: %r", fault)
