"""Reports that pages share for a moment.

With thousands of groups a report is work for every process of the broker. Pages that ask again and
again leave them some rest, in proportion to the time that asking took; a small broker is asked for
each page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ops.http.reports import Reports

REST = 4


class RecentReports:
    def __init__(self, ask: Callable[[], Awaitable[Reports]]) -> None:
        self._ask = ask
        self._found: Reports | None = None
        self._until = 0.0

    async def __call__(self) -> Reports:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._found is None or began >= self._until:
            self._found = await self._ask()
            now = loop.time()
            self._until = now + REST * (now - began)
        return self._found

    def forget(self) -> None:
        """A page has changed something: the next one must show it."""
        self._found = None
