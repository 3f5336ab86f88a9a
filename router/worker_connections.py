"""One client's connections to the workers, and the choice between them.

Every client connection has connections of its own to the workers it needs, opened when it first
needs them. A worker replies in the order of requests, so one connection for many clients would let
a parked Fetch of one client hold back the others. This way a client waits only for what it sent
before, exactly as on a direct connection, and back-pressure goes from socket to socket:

    the worker's socket is full   ──▶ the client is not read from
    the client reads slowly       ──▶ the worker's replies are not read

A connection once chosen is kept while it lasts, so that requests for a partition or a group arrive
in the order in which they were sent. Correlation ids are passed on as they are.

Most requests resemble an earlier one: `known` holds, for each API and version, the first bytes of
the last request whose route depends on them alone, and where it went. It is cleared whenever
requests may have to go elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity
from moldau.broker.wire.frame import API_SIZE, CORRELATION_ID_END
from moldau.broker.wire.repeats import RequestCache, RequestPattern
from moldau.router.reply_queue import ReplyQueue, WorkerReplies
from moldau.router.routing import Route, RouteKind
from moldau.router.state import RouterState
from moldau.router.transport import PausableTransport

logger = logging.getLogger("moldau.router")


class Client(Protocol):
    """The interface of the client connection that owns a worker connection."""

    identity: Identity
    is_closed: bool

    def receive_replies(self, replies: WorkerReplies, data: bytes) -> None: ...

    def block(self, connection: WorkerConnection) -> None:
        """Nothing more can be sent to the worker for now."""

    def unblock(self, connection: WorkerConnection) -> None: ...

    def worker_unreachable(self, connection: WorkerConnection) -> None:
        """It could not connect; nothing was sent."""

    def worker_lost(self, connection: WorkerConnection) -> None: ...


class WorkerConnection(asyncio.Protocol):
    """A client's connection to one worker, over the worker's unix socket."""

    __slots__ = ("_client", "replies", "sent_without_reply", "transport", "worker")

    def __init__(self, client: Client, worker: int) -> None:
        self._client = client
        self.worker = worker
        self.transport = PausableTransport()
        self.replies = WorkerReplies(self.transport)
        # A Produce with acks=0 was sent. If it fails, the worker reports that by hanging up.
        self.sent_without_reply = False

    async def open(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, path)
        except OSError as fault:
            logger.warning("worker %d cannot be reached: %s", self.worker, fault)
            self._client.worker_unreachable(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        unsent = [PREAMBLE.request(self._client.identity), *self.transport.unsent]
        self.transport.attach(transport)
        if self._client.is_closed:
            self.transport.abort()
            return
        self.transport.write(b"".join(unsent))
        self._client.unblock(self)

    def pause_writing(self) -> None:
        self._client.block(self)

    def resume_writing(self) -> None:
        self._client.unblock(self)

    def data_received(self, data: bytes) -> None:
        self._client.receive_replies(self.replies, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.detach()
        self._client.worker_lost(self)


CONTROLLER = 0
MAX_KNOWN_BYTES = 512


class KnownRoute(RequestPattern):
    """Requests that begin with the same bytes go to the same worker."""

    __slots__ = ("connection",)

    def __init__(self, api: bytes, prefix: bytes, connection: WorkerConnection) -> None:
        super().__init__(api, prefix)
        self.connection = connection


class WorkerConnections:
    __slots__ = (
        "_any",
        "_by_worker",
        "_client",
        "_leaders",
        "_replies",
        "_spread",
        "_state",
        "blocked",
        "every",
        "known",
    )

    def __init__(self, client: Client, replies: ReplyQueue, state: RouterState) -> None:
        self._client = client
        self._replies = replies
        self._state = state
        self.every: set[WorkerConnection] = set()
        self.blocked: set[WorkerConnection] = set()  # connecting, or with a full socket
        self.known: RequestCache[KnownRoute] = RequestCache()
        self._by_worker: dict[int, WorkerConnection] = {}  # by the worker at the other end
        self._leaders: dict[int, WorkerConnection] = {}  # by the leader the requests are for
        self._any: WorkerConnection | None = None
        # Takes all Produce requests once one of them named partitions of several leaders.
        self._spread: WorkerConnection | None = None

    @property
    def has_spread(self) -> bool:
        return self._spread is not None

    def remember(
        self, route: Route, depends_on: int, head: bytes, connection: WorkerConnection
    ) -> None:
        """Remember that requests whose first `depends_on` bytes are those of `head` go to the same
        worker.

        `head` is the first bytes of a frame, without its length.
        """
        is_stand_in = route.kind is RouteKind.LEADER and connection.worker != route.worker
        if route.has_reply and 0 < depends_on <= MAX_KNOWN_BYTES and not is_stand_in:
            prefix = head[CORRELATION_ID_END:depends_on]
            self.known.add(KnownRoute(head[:API_SIZE], prefix, connection))

    # --- choosing one ---

    def to_owner(self, worker: int) -> WorkerConnection | None:
        """Choose this worker and no other; None while it is down."""
        connection = self._by_worker.get(worker)
        if connection is None and self._state.workers.is_up[worker]:
            connection = self._open(worker)
        return connection

    def to_leader(self, route: Route) -> WorkerConnection | None:
        """Prefer this worker; None if no worker is up."""
        if self._spread is not None and route.is_produce:
            return self._spread
        worker = route.worker
        connection = self._leaders.get(worker)
        if connection is None or (
            # Return to a leader that was down, once no request of this client can be overtaken.
            connection.worker != worker and not self._replies and self._state.workers.is_up[worker]
        ):
            connection = self._to_nearest(worker)
            if connection is None:
                return None
            self._leaders[worker] = connection
        if route.kind is RouteKind.SPREAD:
            self._spread = connection
            self.known.clear()
        return connection

    def to_any(self) -> WorkerConnection | None:
        """Prefer the advertised controller while it is up, so that a client that creates a topic
        and then asks for it finds it."""
        if self._any is None:
            self._any = self._to_nearest(CONTROLLER)
        return self._any

    def _to_nearest(self, worker: int) -> WorkerConnection | None:
        chosen = self._state.workers.choose(worker)
        if chosen is None:
            return None
        return self._by_worker.get(chosen) or self._open(chosen)

    def _open(self, worker: int) -> WorkerConnection:
        connection = WorkerConnection(self._client, worker)
        self._by_worker[worker] = connection
        self.every.add(connection)
        self._client.block(connection)
        self._state.connect(connection)
        return connection

    # --- the end of one, or of all ---

    def redirect(self, connection: WorkerConnection) -> bool:
        """Connect it to another worker, as its own cannot be reached and nothing was sent. Returns
        False if there is none."""
        self._forget(connection)
        chosen = self._state.workers.choose(connection.worker)
        if chosen is None:
            return False
        connection.worker = chosen
        self._state.connect(connection)
        return True

    def lost(self, connection: WorkerConnection) -> None:
        self.every.discard(connection)
        self.blocked.discard(connection)
        self._forget(connection)
        self._leaders = {at: each for at, each in self._leaders.items() if each is not connection}
        if self._any is connection:
            self._any = None
        if self._spread is connection:
            self._spread = None

    def _forget(self, connection: WorkerConnection) -> None:
        """Send no further request for its worker there."""
        self.known.clear()
        if self._by_worker.get(connection.worker) is connection:
            del self._by_worker[connection.worker]

    def close(self) -> None:
        every, self.every = self.every, set()
        for connection in every:
            connection.transport.abort()
        self.blocked.clear()
        self.known.clear()
        self._by_worker.clear()
        self._leaders.clear()
        self._any = self._spread = None
