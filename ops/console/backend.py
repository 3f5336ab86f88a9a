"""How pages ask the broker: Kafka's own requests over its unix sockets, and its processes' reports.

The client is a blocking one, so questions run in threads, each with connections of its own: a
broker that hangs holds up the page that asks, and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ops.admin.top_state import Key, Sampled, process_figures
from ops.client import Cluster, LocalSockets
from ops.console.group_events import GroupEventLog
from ops.console.history import History
from ops.console.index import Index
from ops.console.recent import RecentReports
from ops.http.reports import Reports, usages

T = TypeVar("T")

TIMEOUT_S = 10.0
SAMPLE_EVERY_S = 5.0
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
        self.reports = RecentReports(reports)
        self.history = History()
        self.group_events = GroupEventLog()
        self._sockets = sockets
        self._index: Index | None = None
        self._samples: deque[Sampled] = deque(maxlen=2)
        self._places = asyncio.Semaphore(MAX_QUESTIONS)

    async def index(self) -> Index:
        """What the processes report, arranged for pages."""
        reports = await self.reports()
        if self._index is None or self._index.reports is not reports:
            self._index = Index(reports)
        return self._index

    def changed(self) -> None:
        """A page has changed something: the next one must show it."""
        self.reports.forget()

    def figures(self) -> dict[Key, dict[str, Any]]:
        """What processes used and did lately, by role and index."""
        return process_figures(self._samples[0], self._samples[-1]) if self._samples else {}

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
            reports = await self.reports.renew()
            self.history.add(loop.time(), time.time(), reports)
            self._samples.append(Sampled(loop.time(), reports, usages(reports.status)))
            await asyncio.sleep(SAMPLE_EVERY_S)
