"""Writes of groups: to the store, and their outcome back to the group as a `Persisted` event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from moldau.broker.coordinator.groups.serialization import encode_members
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.errors import ErrorCode, StoreFault, StoreFenced, StoreTimeout
from moldau.broker.group.effects import Persist
from moldau.broker.group.events import Event
from moldau.broker.group.groups import Groups
from moldau.broker.group.record import encode
from moldau.broker.group.views import Owners
from moldau.broker.machine.effects import Persisted
from moldau.broker.placement import slot_of
from moldau.broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")

MEND_PATIENCE_S = 15.0  # for slots to be taken again


class GroupWrites:
    """`stored` is called with what was written, before the group gets to know of it."""

    def __init__(
        self,
        store: GroupStore,
        groups: Groups,
        slots: Slots,
        submit: Callable[[str, Event], None],
        stored: Callable[[str, Owners | None], Awaitable[None]],
    ) -> None:
        self._store = store
        self._groups = groups
        self._slots = slots
        self._submit = submit
        self._stored = stored
        self._under_way: dict[str, asyncio.Future[None]] = {}  # by group id

    async def persist(self, effect: Persist) -> None:
        group = self._groups.by_id.get(effect.name)
        while isinstance(fault := await self._write(effect), StoreFenced):
            self._slots.fenced(slot_of(effect.name))
            try:
                await self._slots.mended(MEND_PATIENCE_S)
            except StoreTimeout as late:
                fault = late
                break
            if self._groups.by_id.get(effect.name) is not group:
                return  # another worker owns it: it was unloaded, and no outcome is waited for
        self._report(effect, fault)

    async def persist_now(self, effect: Persist) -> None:
        """Once, while slots are being taken again. Raises StoreFault."""
        fault = await self._write(effect)
        self._report(effect, fault)
        if fault is not None:
            raise fault

    async def ended(self, group_id: str) -> None:
        """Until no write of the group is under way."""
        while (under_way := self._under_way.get(group_id)) is not None:
            await under_way

    async def _write(self, effect: Persist) -> StoreFault | None:
        slot, group_id = slot_of(effect.name), effect.name
        ended = self._under_way[group_id] = asyncio.get_running_loop().create_future()
        try:
            if effect.record is None:
                await self._store.remove(slot, group_id, effect.identity)
            else:
                await self._store.save(
                    slot,
                    group_id,
                    effect.identity,
                    effect.token,
                    encode(effect.record),
                    await encode_members(effect.members),
                    generation=effect.record.generation_id,
                    whole=effect.whole,
                )
            await self._stored(group_id, effect.owners)
        except StoreFault as fault:
            return fault
        except Exception as defect:
            # Ours. The group must get an outcome, or it could never write again.
            logger.exception("group %s could not be stored", group_id)
            return StoreFault(str(defect))
        finally:
            ended.set_result(None)
            if self._under_way.get(group_id) is ended:
                del self._under_way[group_id]
        return None

    def _report(self, effect: Persist, fault: StoreFault | None) -> None:
        error = ErrorCode.NONE
        if fault is not None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.warning("group %s could not be stored: %s", effect.name, fault)
        self._submit(effect.name, Persisted(effect.token, error))
