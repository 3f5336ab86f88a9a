"""Groups and transactional ids that an exception has left half changed: they are loaded from the
store again.

Nothing was promised that is not stored, so the store has them as their clients know them, as after
the death of a worker: no epoch rises and no member loses anything. What waited is refused with
COORDINATOR_NOT_AVAILABLE, and until one is back it answers COORDINATOR_LOAD_IN_PROGRESS; clients
retry both. Others are not concerned.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from moldau.broker.coordinator.groups.serialization import loaded_group
from moldau.broker.coordinator.runtime.slots import RETRY_S, Slots
from moldau.broker.coordinator.runtime.writes import GroupWrites
from moldau.broker.errors import StoreFault
from moldau.broker.group.effects import Effect
from moldau.broker.group.groups import Groups
from moldau.broker.group.views import Owners
from moldau.broker.placement import slot_of
from moldau.broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")

# One that fails again and again waits this long before each attempt: it may be a client that asks
# again at once, and each attempt is a traceback in the log.
PAUSE_S = 1.0
FORGET_S = 10.0  # after this long without a failure the next one counts as the first


class Table(Protocol):
    """What a worker coordinates, by name."""

    def start_reloading(self, name: str) -> None: ...

    def is_reloading(self, name: str) -> bool: ...


class Reloading(ABC):
    """`what` it loads, for the log."""

    def __init__(
        self, what: str, table: Table, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._what = what
        self._table = table
        self._spawn = spawn
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._failed_at: dict[str, float] = {}
        self._under_way: set[str] = set()

    @abstractmethod
    async def _load(self, name: str) -> None:
        """It is not reloading any more behind this, unless it has to be tried again at once.
        Raises StoreFault."""

    def start(self, name: str) -> None:
        """It answers COORDINATOR_LOAD_IN_PROGRESS from now on, until it is loaded."""
        self._table.start_reloading(name)
        now = self._clock()
        for known in [one for one, at in self._failed_at.items() if now - at > FORGET_S]:
            del self._failed_at[known]
        pause = PAUSE_S if name in self._failed_at else 0.0
        self._failed_at[name] = now
        if name not in self._under_way:
            self._under_way.add(name)
            self._spawn(self._reload(name, pause))

    async def _reload(self, name: str, pause: float) -> None:
        try:
            while self._table.is_reloading(name):  # else its slot was given up
                await asyncio.sleep(pause)
                try:
                    await self._load(name)
                    pause = RETRY_S  # if the slot was taken again meanwhile, or it failed again
                except StoreFault as fault:
                    logger.warning("%s %s: waiting for the store: %s", self._what, name, fault)
                    pause = RETRY_S
                except Exception:
                    logger.exception("%s %s could not be loaded again", self._what, name)
                    pause = PAUSE_S
        finally:
            self._under_way.discard(name)


class Shell(Protocol):
    def now_ms(self) -> int: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def run(self, effects: Iterable[Effect]) -> None: ...

    async def stored(self, group_id: str, owners: Owners | None) -> None: ...


class GroupReloading(Reloading):
    def __init__(
        self, shell: Shell, store: GroupStore, groups: Groups, slots: Slots, writes: GroupWrites
    ) -> None:
        super().__init__("group", groups, shell.spawn)
        self._shell = shell
        self._store = store
        self._groups = groups
        self._slots = slots
        self._writes = writes

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
