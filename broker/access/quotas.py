"""The quotas in force in a worker, loaded from the store, and how much clients have used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moldau.broker.security.quota_entities import Entity, QuotaTable
from moldau.broker.security.quota_rates import Windows
from moldau.broker.security.quota_requests import altered
from moldau.broker.security.quota_usage import Usages
from moldau.broker.store.quotas import QuotaStore


class Quotas:
    """A `CachedTable` for changes of kind "quota"."""

    def __init__(self, store: QuotaStore, windows: Windows, mutation_windows: Windows) -> None:
        self._store = store
        self.usages = Usages(QuotaTable({}), windows, mutation_windows)
        self.on_changed: Callable[[], None] = lambda: None

    @property
    def table(self) -> QuotaTable:
        return self.usages.table

    async def load(self) -> None:
        table = QuotaTable(await self._store.all())
        if table.quotas != self.table.quotas:
            self.usages.use(table)
            self.on_changed()

    async def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> bool:
        """Store changes; `load` puts them in force here. Returns False if nothing changed. Raises
        StoreFault."""
        while True:
            old = await self._store.of(entity)
            new = altered(old, changes)
            if new == old:
                return False
            if await self._store.replace(entity, old, new):
                return True
