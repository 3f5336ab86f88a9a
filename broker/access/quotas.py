"""The quotas in force in a worker, in step with the store, and what clients have used of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moldau.broker.security.quota_entities import Entity, QuotaTable
from moldau.broker.security.quota_rates import Windows
from moldau.broker.security.quota_requests import altered
from moldau.broker.security.quota_usage import Usages
from moldau.broker.store.quotas import QuotaStore


class Quotas:
    """`CachedTable` for changes of kind "quota"."""

    def __init__(self, store: QuotaStore, windows: Windows, mutation_windows: Windows) -> None:
        self._store = store
        self.usages = Usages(QuotaTable({}), windows, mutation_windows)
        self.on_changed: Callable[[], None] | None = None

    @property
    def table(self) -> QuotaTable:
        return self.usages.table

    async def load(self) -> None:
        table = QuotaTable(await self._store.all())
        if table.quotas != self.table.quotas:
            self.usages.use(table)
            if self.on_changed is not None:
                self.on_changed()

    async def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> bool:
        """Store them; `load` makes them count here. False: nothing is different. Raises
        StoreFault."""
        while True:
            old = await self._store.of(entity)
            new = altered(old, changes)
            if new == old:
                return False
            if await self._store.replace(entity, old, new):
                return True
