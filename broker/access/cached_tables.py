"""Tables that a worker holds in memory, all of them: users, ACLs, delegation tokens, quotas.

Each is loaded before the worker listens, when a change of its kind is announced, and when changes
may have been missed. While the store cannot be reached, what was loaded last counts.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class CachedTable(Protocol):
    async def load(self) -> None:
        """Load the whole table from the store. Raises StoreFault."""


@runtime_checkable
class RefreshedByName(CachedTable, Protocol):
    """A table that need not be loaded as a whole after a change."""

    async def refresh(self, name: str) -> None:
        """Load what the change names; "": the whole table. Raises StoreFault."""


class CachedTables:
    """The tables, by the kind of change that concerns them (`Change.kind`)."""

    def __init__(self) -> None:
        self._tables: dict[str, CachedTable] = {}

    def add(self, kind: str, table: CachedTable) -> None:
        self._tables[kind] = table

    def __contains__(self, kind: str) -> bool:
        return kind in self._tables

    async def refresh(self, kind: str, name: str) -> None:
        table = self._tables[kind]
        await (table.refresh(name) if isinstance(table, RefreshedByName) else table.load())

    async def load(self) -> None:
        for table in self._tables.values():
            await table.load()
