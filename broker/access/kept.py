"""What a worker holds in memory whole, as it is in the store: users, ACLs, quotas.

Each is loaded before the worker listens, again when a change of its kind is announced, and again
when changes may have been missed. While the store cannot be reached, what was loaded last counts.
"""

from __future__ import annotations

from typing import Protocol


class Kept(Protocol):
    async def load(self) -> None:
        """Replace what is in memory by what is in the store. Raises StoreFault."""


class KeptByKind:
    """By the kind of change that concerns it (`Change.kind`)."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def add(self, kind: str, kept: Kept) -> None:
        self._kept[kind] = kept

    def __contains__(self, kind: str) -> bool:
        return kind in self._kept

    async def refresh(self, kind: str) -> None:
        await self._kept[kind].load()

    async def load(self) -> None:
        for kept in self._kept.values():
            await kept.load()
