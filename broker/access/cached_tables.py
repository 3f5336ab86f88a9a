"""What a worker holds in memory whole, as it is in the store: users, ACLs, tokens,
quotas.

Each is loaded before the worker listens, again when a change of its kind is announced, and again
when changes may have been missed. While the store cannot be reached, what was loaded last counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class CachedTable(Protocol):
    async def load(self) -> None:
        """Replace what is in memory by what is in the store. Raises StoreFault."""


@runtime_checkable
class CachedByName(CachedTable, Protocol):
    """Where one change need not read everything again."""

    async def refresh(self, name: str) -> None:
        """As `load`, for what the change names; "": for everything."""


class CachedTables:
    """By the kind of change that concerns it (`Change.kind`)."""

    def __init__(self, by_kind: Mapping[str, CachedTable | None]) -> None:
        """None: this kind is turned off."""
        self._tables = {kind: table for kind, table in by_kind.items() if table is not None}

    def __contains__(self, kind: str) -> bool:
        return kind in self._tables

    async def refresh(self, kind: str, name: str) -> None:
        table = self._tables[kind]
        await (table.refresh(name) if isinstance(table, CachedByName) else table.load())

    async def load(self) -> None:
        for table in self._tables.values():
            await table.load()
