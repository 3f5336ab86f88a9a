"""Which slots have all of their transactional ids, and how a clean shutdown shows that.

A store that has changed may have lost its tail. An owner that is still running writes again what is
missing. Without one, nobody knows which producer epochs were given out, so every producer of the
slot has to be fenced.

A clean shutdown avoids that: the worker writes the `CLOSED` marker to each slot last. If the marker
is still there after a restart, nothing that was written before it is lost. The next owner removes
the marker and confirms the removal before it does anything else: a later loss could bring the
marker back. A store that cannot confirm writes gets no marker.
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

CLOSED = b"closed in "  # followed by the store id
WITHIN_S = 2.0


class LastIntact(NamedTuple):
    """When a slot was last known to be intact."""

    store_id: bytes  # the store id at that time; empty: it never was
    is_clean: bool  # its worker was shut down cleanly: nothing was written since


class CleanShutdown:
    """Keeps the markers of one worker's slots."""

    def __init__(
        self, store: TransactionStore, confirmation: Confirmation, slots: Sequence[int]
    ) -> None:
        self._store = store
        self._confirmation = confirmation
        self._slots = slots
        self._intact: dict[int, bytes] = {}  # slot -> the store id under which it is
        self._closed: dict[int, bytes] = {}  # the markers that were found, by slot

    async def last_intact(self, slot: int) -> LastIntact:
        """Raises StoreFault."""
        found = await self._store.last_intact(slot)
        if found.startswith(CLOSED):
            await self._reopen()
        if slot in self._closed:
            return LastIntact(self._closed[slot], True)
        return LastIntact(found, False)

    async def _reopen(self) -> None:
        """Remove the markers of all slots at once: a confirmation may take a second."""
        closed: dict[int, bytes] = {}
        for slot in self._slots:
            found = await self._store.last_intact(slot)
            if found.startswith(CLOSED):
                closed[slot] = found.removeprefix(CLOSED)
                await self._store.save_intact(slot, closed[slot])
        await self._confirmation.confirm()
        self._closed |= closed

    async def save_intact(self, slot: int, store_id: bytes) -> None:
        """Save that the slot is intact under this store id. Raises StoreFault."""
        await self._store.save_intact(slot, store_id)
        self.mark_intact(slot, store_id)

    def mark_intact(self, slot: int, store_id: bytes) -> None:
        self._intact[slot] = store_id
        self._closed.pop(slot, None)

    def unmark(self, slot: int) -> None:
        self._intact.pop(slot, None)

    async def close(self) -> None:
        """Write the markers: the worker stops, and writes nothing more."""
        if not self._confirmation.means_something:
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                for slot, store_id in self._intact.items():
                    await self._store.save_intact(slot, CLOSED + store_id)
        except (TimeoutError, StoreFault) as fault:
            logger.warning("transactional ids: no marker of a clean shutdown: %r", fault)
