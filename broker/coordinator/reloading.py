"""Groups that an exception has left half changed: they are loaded from the store again.

Nothing was promised that is not stored, so the store has the group as its members know it, as after
the death of a worker: no epoch rises and no member loses anything. What waited is refused with
COORDINATOR_NOT_AVAILABLE, and until the group is back it answers COORDINATOR_LOAD_IN_PROGRESS;
clients retry both. Other groups are not concerned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from broker.coordinator.group_writes import GroupWrites
from broker.coordinator.slots import RETRY_S, Slots
from broker.coordinator.stored import loaded_group
from broker.errors import StoreFault
from broker.group.effects import Effect
from broker.group.groups import Groups
from broker.group.views import Owners
from broker.placement import slot_of
from broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")

# A group that fails again and again waits this long before each attempt: it may be a member that
# asks again at once, and each attempt is a traceback in the log.
PAUSE_S = 1.0
FORGET_S = 10.0  # after this long without a failure the next one counts as the first


class Shell(Protocol):
    def now_ms(self) -> int: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def run(self, effects: Iterable[Effect]) -> None: ...

    async def stored(self, group_id: str, owners: Owners | None) -> None: ...


class Reloading:
    def __init__(
        self, shell: Shell, store: GroupStore, groups: Groups, slots: Slots, writes: GroupWrites
    ) -> None:
        self._shell = shell
        self._store = store
        self._groups = groups
        self._slots = slots
        self._writes = writes
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._failed_at: dict[str, float] = {}
        self._under_way: set[str] = set()

    def start(self, group_id: str) -> None:
        """The group answers COORDINATOR_LOAD_IN_PROGRESS from now on, until it is loaded."""
        self._groups.start_reloading(group_id)
        now = self._clock()
        for known in [one for one, at in self._failed_at.items() if now - at > FORGET_S]:
            del self._failed_at[known]
        pause = PAUSE_S if group_id in self._failed_at else 0.0
        self._failed_at[group_id] = now
        if group_id not in self._under_way:
            self._under_way.add(group_id)
            self._shell.spawn(self._reload(group_id, pause))

    async def _reload(self, group_id: str, pause: float) -> None:
        try:
            while self._groups.is_reloading(group_id):  # else its slot was given up
                await asyncio.sleep(pause)
                try:
                    await self._load(group_id)
                except StoreFault as fault:
                    logger.warning("group %s: waiting for the store: %s", group_id, fault)
                    pause = RETRY_S
                except Exception:
                    logger.exception("group %s could not be loaded again", group_id)
                    pause = PAUSE_S
        finally:
            self._under_way.discard(group_id)

    async def _load(self, group_id: str) -> None:
        slot = slot_of(group_id)
        await self._writes.ended(group_id)  # what is read must not be overtaken
        await self._slots.mended()
        held = self._store.held(slot)
        found = loaded_group(await self._store.load_group(slot, group_id))
        if not self._groups.is_reloading(group_id):
            return
        if self._store.held(slot) != held or not self._slots.is_mended:
            return  # taken again meanwhile, perhaps from another owner: once more
        floor = self._store.floor(slot)
        effects = self._groups.finish_reloading(found, self._shell.now_ms(), floor)
        logger.warning("group %s is loaded again", group_id)
        self._shell.run(effects)
        group = self._groups.by_id.get(group_id)
        if group is not None:
            await self._shell.stored(group_id, Owners(group.subscribed_topics(), group.owners))
