"""Tables of the store that a worker holds in memory: users, ACLs, tokens, quotas and others.

Each is loaded before the worker listens, again when a change of its kind is announced, and again
when changes may have been missed. While the store cannot be reached, the last load is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class CachedTable(Protocol):
    async def load(self) -> None:
        """Load the table from the store. Raises StoreFault."""


@runtime_checkable
class CachedByName(CachedTable, Protocol):
    """A table that can reload the part that a change names."""

    async def refresh(self, name: str) -> None:
        """Load the part named by a change; "" loads everything. Raises StoreFault."""


class CachedTables:
    """The tables of a worker, by the kind of their changes (`Change.kind`)."""

    def __init__(self, by_kind: Mapping[str, CachedTable | None]) -> None:
        """None for a table that is turned off."""
        self._tables = {kind: table for kind, table in by_kind.items() if table is not None}

    def __contains__(self, kind: str) -> bool:
        return kind in self._tables

    async def refresh(self, kind: str, name: str) -> None:
        table = self._tables[kind]
        await (table.refresh(name) if isinstance(table, CachedByName) else table.load())

    async def load(self) -> None:
        for table in self._tables.values():
            await table.load()
