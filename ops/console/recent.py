"""A snapshot that pages share for a moment.

With thousands of groups a report is work for every process of the broker. Pages then show the last
one for a while, in proportion to the time that asking took, and it is renewed in the background; a
small broker is asked for each page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moldau.ops.http.snapshot import Snapshot

REST = 10  # times as long as asking took
MAX_AGE_S = 15.0


class RecentSnapshot:
    def __init__(self, ask: Callable[[], Awaitable[Snapshot]]) -> None:
        self._ask = ask
        self._found: Snapshot | None = None
        self._until = 0.0
        self._changes = 0

    async def __call__(self) -> Snapshot:
        found = self._found
        if found is not None and asyncio.get_running_loop().time() < self._until:
            return found
        return await self.renew()

    async def renew(self) -> Snapshot:
        loop = asyncio.get_running_loop()
        began, changes = loop.time(), self._changes
        found = await self._ask()
        if changes == self._changes:  # else it may have been made before the change
            now = loop.time()
            self._found = found
            self._until = now + min(REST * (now - began), MAX_AGE_S)
        return found

    def forget(self) -> None:
        """A page has changed something: the next one must show it."""
        self._found = None
        self._changes += 1
