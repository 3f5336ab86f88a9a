"""How pages ask the broker: Kafka's requests over its unix sockets, and snapshots of its processes.

`visitor` is the user who looks at a page. Everything a page gets from here is limited to what that
user may see and do: pages need not know. Without logins the user is the operator, who may do
everything.

The client is a blocking one, so questions run in threads, each with connections of its own: a
broker that hangs holds up the page that asks, and no other. Live views have threads of their own,
as they wait in them for records.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from moldau.ops.client import Cluster, Denied, LocalSockets, Unreachable
from moldau.ops.console.group_events import GroupEventLog
from moldau.ops.console.history import History
from moldau.ops.console.hues import Hues
from moldau.ops.console.index import Index
from moldau.ops.console.live_views import MAX_LIVE, LiveViews
from moldau.ops.console.login import Logins, LoginUnavailable
from moldau.ops.console.sessions import CHANGED, Session
from moldau.ops.console.user_cluster import NotAllowed, SessionOver, UserCluster
from moldau.ops.console.visible_names import VisibleHistory, visible_events
from moldau.ops.http.snapshot import Snapshot, usages
from moldau.ops.operations.group_history import Event
from moldau.ops.operations.top import Key, Sampled, process_figures

T = TypeVar("T")
Q = TypeVar("Q")

TIMEOUT_S = 10.0
SAMPLE_EVERY_S = 5.0
VISIBLE_S = 1.0  # then workers are asked again for the names that a user may see
MAX_QUESTIONS = 32
CLIENT_ID = "moldau-console"
REST = 10  # a snapshot is good for so many times as long as asking took
MAX_AGE_S = 15.0

# Who looks at the page that is being made; None: without a login.
visitor: ContextVar[Session | None] = ContextVar("visitor", default=None)


class Backend:
    def __init__(
        self,
        port: int,
        snapshot: Callable[[], Awaitable[Snapshot]],
        sockets: Callable[[], LocalSockets | None],
        logins: Logins | None = None,
    ) -> None:
        """`port`: the bootstrap port. `logins`: None where there are no logins."""
        self.port = port
        self.logins = logins
        self._snapshot = RecentSnapshot(snapshot)
        self.hues = Hues()
        self._history = History()
        self._group_events = GroupEventLog()
        self._sockets = sockets
        self._index: Index | None = None
        self._samples: deque[Sampled] = deque(maxlen=2)
        self._questions = ThreadPoolExecutor(MAX_QUESTIONS, thread_name_prefix="question")
        self._followers = ThreadPoolExecutor(MAX_LIVE, thread_name_prefix="follower")
        self.live_views = LiveViews()

    # --- for the visitor ---

    async def index(self) -> Index:
        """The snapshot, arranged for pages. Raises ClientError."""
        snapshot, session = await self.snapshot(), self._session()
        if session is not None and not session.visible.everything:
            return session.shown.index(snapshot)
        if self._index is None or self._index.snapshot is not snapshot:
            self._index = Index(snapshot)
        return self._index

    def changed(self) -> None:
        """Forget the snapshot: a page has changed something, and the next one must show it."""
        self._snapshot.forget()
        if (session := self._session()) is not None:
            session.visible_at = float("-inf")

    def figures(self) -> dict[Key, dict[str, Any]]:
        """CPU, memory and rates of processes, by role and index."""
        if not self._samples or not self.sees_cluster:
            return {}
        return process_figures(self._samples[0], self._samples[-1])

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        """Ask the broker. Raises ClientError."""
        return await _in_thread(self._questions, self._ask, question)

    async def follow(self, step: Callable[[Cluster], T], cluster: Cluster) -> T:
        """A step of a live view, which has `cluster` for itself. Raises ClientError."""
        return await _in_thread(self._followers, step, cluster)

    def _ask(self, question: Callable[[Cluster], T]) -> T:
        with self.cluster() as cluster:
            try:
                return question(cluster)
            except Denied as denied:
                raise NotAllowed(cluster.worded(denied)) from denied

    def cluster(self) -> Cluster:
        """A cluster for work that lasts long. Raises ClientError."""
        session = self._session()
        if session is None:
            return self.as_operator()
        local = self._sockets()
        if local is None:
            raise Unreachable("the broker does not answer at its unix sockets: is it starting?")
        assert self.logins is not None
        return UserCluster(
            session,
            self.logins.is_over,
            self.port,
            local,
            timeout=TIMEOUT_S,
            client_id=CLIENT_ID,
        )

    async def snapshot(self) -> Snapshot:
        """The snapshot, as far as the visitor may see it. Raises ClientError."""
        session = self._session()
        if session is None:
            return await self._snapshot()
        await self._see(session)
        return session.shown.snapshot(await self._snapshot(), session.visible)

    @property
    def history(self) -> History | VisibleHistory:
        """The history, without what the visitor may not see as found by `snapshot` or `events`."""
        session = self._session()
        if session is None or session.visible.everything:
            return self._history
        return VisibleHistory(self._history, session.visible)

    async def events(self, group: str, since_ms: int) -> list[Event]:
        """Events of a group since a time. Raises ClientError."""

        def read(cluster: Cluster) -> list[Event]:
            if session is not None:
                cluster.coordinator(group)  # is denied to who may not describe the group
            with self.as_operator() as operator:
                return self._group_events.of(operator, group, since_ms)

        session = self._session()
        if session is None:
            return await self.ask(read)
        await self._see(session)
        return visible_events(await self.ask(read), session.visible)

    @property
    def sees_cluster(self) -> bool:
        """Whether the visitor may see processes and the store, as found by `snapshot`."""
        session = self._session()
        return session is None or session.visible.cluster

    # --- for everyone ---

    def as_operator(self) -> Cluster:
        """A cluster with all rights: to find out how to show something that the visitor may see."""
        return Cluster(
            [("127.0.0.1", self.port)],
            local=self._sockets(),
            timeout=TIMEOUT_S,
            client_id=CLIENT_ID,
        )

    async def sample(self) -> None:
        """Take a snapshot every few seconds: the charts show the last hour."""
        loop = asyncio.get_running_loop()
        while True:
            snapshot = await self._snapshot.renew()
            self._history.add(loop.time(), time.time(), snapshot)
            self._samples.append(Sampled(loop.time(), snapshot, usages(snapshot.status)))
            await asyncio.sleep(SAMPLE_EVERY_S)

    # --- sessions ---

    def _session(self) -> Session | None:
        """None where there are no logins. Raises SessionOver."""
        session = visitor.get()
        if session is None and self.logins is not None:
            raise SessionOver("log in first")
        return session

    async def _see(self, session: Session) -> None:
        """Ask workers what the user may see. Raises ClientError."""
        assert self.logins is not None
        asked_at = time.monotonic()
        if asked_at - session.visible_at <= VISIBLE_S:
            return
        try:
            visible = await self.logins.ask_visible(session.identity)
        except LoginUnavailable:
            raise Unreachable("no worker answers: is the broker starting?") from None
        if visible is None:
            session.ended = session.ended or CHANGED
            raise SessionOver(session.ended)
        session.visible, session.visible_at = visible, asked_at


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[Q], T], argument: Q) -> T:
    """Run `work` in the context of the caller, who is the visitor; waits while all threads are
    busy."""
    called = partial(contextvars.copy_context().run, work, argument)
    return await asyncio.get_running_loop().run_in_executor(pool, called)


class RecentSnapshot:
    """A snapshot that pages share for a moment.

    With thousands of groups a report is work for every process of the broker. Pages then show the
    last one for a while, in proportion to the time that asking took; a small broker is asked for
    each page.
    """

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
