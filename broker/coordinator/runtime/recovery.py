"""Machines that an exception left half changed are reloaded from the store.

Nothing was promised that is not stored, so the store has them as their clients know them, as after
the death of a worker: no epoch rises and no member loses anything. What waited is refused with
COORDINATOR_NOT_AVAILABLE, and until one is back it answers COORDINATOR_LOAD_IN_PROGRESS; clients
retry both. Other machines are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator.runtime.slots import RETRY_S
from moldau.broker.errors import StoreFault
from moldau.broker.placement import slot_of

if TYPE_CHECKING:
    from moldau.broker.coordinator.runtime.runtime import Runtime

logger = logging.getLogger("moldau.coordinator")

# One that fails again and again waits this long before each attempt: it may be a client that asks
# again at once, and each attempt is a traceback in the log.
PAUSE_S = 1.0
FORGET_S = 10.0  # after this long without a failure the next one counts as the first


class Recovery:
    def __init__(self, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._failed_at: dict[str, float] = {}
        self._under_way: dict[str, bytes] = {}  # by name: the store's id when it failed

    def start(self, name: str) -> None:
        """Reload it. It answers COORDINATOR_LOAD_IN_PROGRESS from now on, until it is back."""
        self._runtime.table.start_reloading(name)
        now = self._clock()
        for known in [one for one, at in self._failed_at.items() if now - at > FORGET_S]:
            del self._failed_at[known]
        pause = PAUSE_S if name in self._failed_at else 0.0
        self._failed_at[name] = now
        if name not in self._under_way:
            self._under_way[name] = self._runtime.slots.store_id
            self._runtime.spawn(self._reload(name, pause))

    async def _reload(self, name: str, pause: float) -> None:
        kind = self._runtime.kind
        try:
            while self._runtime.table.is_reloading(name):  # else its slot was given up
                await asyncio.sleep(pause)
                try:
                    await self._load(name)
                    pause = RETRY_S  # if the slot was taken again meanwhile, or it failed again
                except StoreFault as fault:
                    logger.warning("%s %s: waiting for the store: %s", kind, name, fault)
                    pause = RETRY_S
                except Exception:
                    logger.exception("%s %s could not be reloaded", kind, name)
                    pause = PAUSE_S
        finally:
            del self._under_way[name]

    async def _load(self, name: str) -> None:
        runtime, slot = self._runtime, slot_of(name)
        await runtime.writes.ended(name)  # no write may overtake the read
        await runtime.slots.wait_reacquired()
        taken = runtime.slots.taken(slot)
        found = await runtime.read_one(slot, name)
        if not runtime.table.is_reloading(name):
            return
        if taken is None or runtime.slots.taken(slot) != taken or not runtime.slots.is_reacquired:
            return  # taken again meanwhile, perhaps from another owner: once more
        # What the store has lost since then, no memory has either.
        is_stale = self._under_way[name] != runtime.slots.store_id
        effects = runtime.restore_one(name, found, is_stale=is_stale)
        logger.warning("%s %s is reloaded", runtime.kind, name)
        runtime.run(effects)
