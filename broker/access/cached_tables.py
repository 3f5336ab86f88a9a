"""What a worker holds in memory whole, as it is in the store: users, ACLs, tokens,
quotas.

Each is loaded before the worker listens, again when a change of its kind is announced, and again
when changes may have been missed. While the store cannot be reached, what was loaded last counts.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Kept(Protocol):
    async def load(self) -> None:
        """Replace what is in memory by what is in the store. Raises StoreFault."""


@runtime_checkable
class KeptByName(Kept, Protocol):
    """Where one change need not read everything again."""

    async def refresh(self, name: str) -> None:
        """As `load`, for what the change names; "": for everything."""


class KeptByKind:
    """By the kind of change that concerns it (`Change.kind`)."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def add(self, kind: str, kept: Kept) -> None:
        self._kept[kind] = kept

    def __contains__(self, kind: str) -> bool:
        return kind in self._kept

    async def refresh(self, kind: str, name: str) -> None:
        kept = self._kept[kind]
        await (kept.refresh(name) if isinstance(kept, KeptByName) else kept.load())

    async def load(self) -> None:
        for kept in self._kept.values():
            await kept.load()
