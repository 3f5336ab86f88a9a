"""How pages ask the broker: Kafka's own requests over its unix sockets, and its processes' reports.

The client is a blocking one, so questions run in threads, each with connections of its own: a
broker that hangs holds up the page that asks, and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ops.client import Cluster, LocalSockets
from ops.console.group_events import GroupEventLog
from ops.console.history import History
from ops.console.index import Index
from ops.http.reports import Reports

T = TypeVar("T")

TIMEOUT_S = 10.0
SAMPLE_EVERY_S = 5.0
# Pages that ask again and again leave the broker this much more time than asking it takes.
REST = 4
# The default executor has few threads: followers of a log would occupy them.
MAX_QUESTIONS = 32


class Backend:
    def __init__(
        self,
        port: int,
        reports: Callable[[], Awaitable[Reports]],
        sockets: Callable[[], LocalSockets | None],
    ) -> None:
        """`port`: the bootstrap port."""
        self.port = port
        self.reports = reports
        self.history = History()
        self.group_events = GroupEventLog()
        self._sockets = sockets
        self._index: Index | None = None
        self._index_until = 0.0
        self._places = asyncio.Semaphore(MAX_QUESTIONS)

    async def index(self) -> Index:
        """What the processes report, arranged for pages.

        With thousands of groups a report is work for every process; it is then used for a moment,
        in proportion to the time it took. A small broker is asked for each page.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._index is None or began >= self._index_until:
            self._index = Index(await self.reports())
            now = loop.time()
            self._index_until = now + REST * (now - began)
        return self._index

    def changed(self) -> None:
        """A page has changed something: the next one must show it."""
        self._index = None

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        """Ask the broker. Raises ClientError."""
        async with self._places:
            return await asyncio.to_thread(self._ask, question)

    def _ask(self, question: Callable[[Cluster], T]) -> T:
        with self.cluster() as cluster:
            return question(cluster)

    def cluster(self) -> Cluster:
        return Cluster(
            [("127.0.0.1", self.port)],
            local=self._sockets(),
            timeout=TIMEOUT_S,
            client_id="moldau-console",
        )

    async def sample(self) -> None:
        """Remember the reports now and then: the last hour, for the charts."""
        loop = asyncio.get_running_loop()
        while True:
            self.history.add(loop.time(), time.time(), await self.reports())
            await asyncio.sleep(SAMPLE_EVERY_S)
