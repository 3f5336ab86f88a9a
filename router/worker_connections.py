"""One client's connections to the workers, and which of them a request goes to.

They are opened when first needed. A connection once chosen is kept while it lasts, so that what a
client sends to a partition or a group arrives in the order in which it was sent.

Most requests are like one before: `known` holds, for each API and version, the first bytes of the
last request that was routed by them alone, and where it went. Whatever changes where requests go
empties it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.routing import Kind, Plan
from router.worker_connection import Upstream

if TYPE_CHECKING:
    from router.replies import ClientReplies
    from router.state import Hub

CONTROLLER = 0
LONGEST_KNOWN = 512
# Of a request frame with its length: where API and version stand, and what is behind the
# correlation id.
API_AT, BEHIND_CORRELATION_ID = 4, 12
_CORRELATION_END = BEHIND_CORRELATION_ID - 4  # in a frame without its length

# The bytes behind the correlation id, how long a frame must be to have them, where it goes.
Known = tuple[bytes, int, Upstream]


class Routes:
    __slots__ = ("_any", "_by_worker", "_client", "_home", "_hub", "_leaders", "every", "known")

    def __init__(self, client: ClientReplies, hub: Hub) -> None:
        self._client = client
        self._hub = hub
        self.every: set[Upstream] = set()
        self.known: dict[bytes, Known] = {}  # by API and version, as they stand on the wire
        self._by_worker: dict[int, Upstream] = {}  # by the worker they lead to
        self._leaders: dict[int, Upstream] = {}  # whom a leader's requests go to
        self._any: Upstream | None = None
        self._home: Upstream | None = None  # once it has produced to several leaders at once

    @property
    def has_home(self) -> bool:
        return self._home is not None

    def remember(self, planned: Plan, depends: int, frame: bytes, upstream: Upstream) -> None:
        """Requests that begin like this one, up to `depends`, go to the same worker.

        The frame may be its beginning only, and comes without its length.
        """
        is_stand_in = planned.kind is Kind.LEADER and upstream.worker != planned.worker
        if planned.answered and 0 < depends <= LONGEST_KNOWN and not is_stand_in:
            self.known[frame[:4]] = (frame[_CORRELATION_END:depends], depends, upstream)

    def owner(self, worker: int) -> Upstream | None:
        """To this worker and no other; None while it is away."""
        upstream = self._by_worker.get(worker)
        if upstream is None and self._hub.workers.is_up[worker]:
            upstream = self._open(worker)
        return upstream

    def leader(self, planned: Plan) -> Upstream | None:
        """To this worker by preference; None when there is none at all."""
        if self._home is not None and planned.is_produce:
            return self._home
        worker = planned.worker
        upstream = self._leaders.get(worker)
        if upstream is None or (
            # Back to the leader that was away, when no request of ours can be overtaken.
            upstream.worker != worker and not self._client.turns and self._hub.workers.is_up[worker]
        ):
            upstream = self._nearest(worker)
            if upstream is None:
                return None
            self._leaders[worker] = upstream
        if planned.kind is Kind.SPREAD:
            self._home = upstream
            self.known.clear()
        return upstream

    def any(self) -> Upstream | None:
        """The controller, as clients are told, while it is there: who creates a topic and then
        looks for it finds it."""
        if self._any is None:
            self._any = self._nearest(CONTROLLER)
        return self._any

    def _nearest(self, worker: int) -> Upstream | None:
        chosen = self._hub.workers.choose(worker)
        if chosen is None:
            return None
        return self._by_worker.get(chosen) or self._open(chosen)

    def _open(self, worker: int) -> Upstream:
        upstream = Upstream(self._client, worker, self._hub.loop)
        self._by_worker[worker] = upstream
        self.every.add(upstream)
        self._client.block(upstream)
        self._hub.connect(upstream)
        return upstream

    # --- the end of one, or of all ---

    def redirect(self, upstream: Upstream) -> bool:
        """Its worker cannot be reached, so nothing was sent: another one gets it all. False: there
        is none."""
        workers = self._hub.workers
        self._forget(upstream)
        chosen = workers.choose(upstream.worker)
        if chosen is None:
            return False
        upstream.worker = chosen
        self._hub.connect(upstream)
        return True

    def lost(self, upstream: Upstream) -> None:
        self.every.discard(upstream)
        self._forget(upstream)
        self._leaders = {at: each for at, each in self._leaders.items() if each is not upstream}
        if self._any is upstream:
            self._any = None
        if self._home is upstream:
            self._home = None

    def _forget(self, upstream: Upstream) -> None:
        """No further request of its worker goes there."""
        self.known.clear()
        if self._by_worker.get(upstream.worker) is upstream:
            del self._by_worker[upstream.worker]

    def close(self) -> None:
        upstreams, self.every = self.every, set()
        for upstream in upstreams:
            upstream.abort()
        self.known.clear()
        self._by_worker.clear()
        self._leaders.clear()
        self._any = self._home = None
