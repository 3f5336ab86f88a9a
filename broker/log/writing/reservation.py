"""Offsets reserved ahead of need: a worker appends only below its confirmed reservation.

A store that lost its tail still has the reservation, because that was confirmed before anything was
appended under it. So no offset at or above the largest reservation of a log was ever
given out, and a new epoch can begin there.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SECONDS_AHEAD = 10
SHORTEST_S = 0.1  # in less no rate can be measured


class Reserves(Protocol):
    @property
    def least_reserved(self) -> int: ...
    async def reserve(self, key: bytes, ceiling: int) -> bool: ...


class Reservation:
    """The offsets of one log that this worker may use: those below `ceiling`. More are reserved
    when the log reaches `extend_at`."""

    __slots__ = ("_at", "_end", "_extending", "_key", "_store", "ceiling", "extend_at")

    def __init__(self, store: Reserves, key: bytes) -> None:
        self._store = store
        self._key = key
        self._extending: asyncio.Task[bool] | None = None
        self.loaded(0, 0)

    def loaded(self, ceiling: int, end: int) -> None:
        """The log was loaded, with the reservation of an earlier process of this worker."""
        self.ceiling = ceiling
        self.extend_at = ceiling - self._store.least_reserved // 2
        self._end, self._at = end, asyncio.get_running_loop().time()

    def extend(self, end: int) -> asyncio.Task[bool]:
        """Reserve for what comes after `end`, ten seconds' worth. False: load the log again."""
        if self._extending is None:
            loop = asyncio.get_running_loop()
            self._extending = loop.create_task(self._extend(end, loop.time()))
            self._extending.add_done_callback(self._extended)
        return self._extending

    def _extended(self, task: asyncio.Task[bool]) -> None:
        self._extending = None
        if not task.cancelled():
            task.exception()  # whoever waits for it has got it; an early extension is tried again

    async def _extend(self, end: int, now: float) -> bool:
        rate = (end - self._end) / max(now - self._at, SHORTEST_S)
        wanted = end + max(self._store.least_reserved, int(rate * SECONDS_AHEAD))
        ceiling = self.ceiling
        if not await self._store.reserve(self._key, wanted):
            return False
        if self.ceiling != ceiling:
            return False  # the log was loaded again meanwhile
        self.ceiling = max(wanted, ceiling)
        self.extend_at = self.ceiling - (wanted - end) // 2
        self._end, self._at = end, now
        return True
