"""Forwards the requests of one client to the workers that serve them.

Requests are forwarded in the pieces in which they arrive: a large Produce is never kept completely.
Bytes that cannot be forwarded yet are kept, and the client is not read from meanwhile (see
`may_read`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE, read_request_header
from moldau.broker.wire.framing import MIN_REQUEST, FrameTracker, InvalidFrameSize
from moldau.broker.wire.primitives import MalformedMessage
from moldau.router.reply_queue import ReplyQueue
from moldau.router.routing import Route, RouteKind, find_route
from moldau.router.split import GatheredReply, RequestPart
from moldau.router.state import RouterState
from moldau.router.transport import piece_of
from moldau.router.unavailable import unavailable_reply
from moldau.router.worker_connections import WorkerConnection, WorkerConnections

# Enough to route nearly every request; otherwise everything received of it is looked at.
FIRST_HEAD_BYTES = 2048
# Requests forwarded before other connections get their turn, however fast a client sends them.
MAX_PER_TURN = 256
SERVED_HERE = 16  # the cost of a reply that is made here, in units of forwarding one

_API_VERSIONS = ApiKey.API_VERSIONS.to_bytes(2)
_SASL_HANDSHAKE = ApiKey.SASL_HANDSHAKE.to_bytes(2)
FORWARDED = frozenset({RouteKind.LEADER, RouteKind.SPREAD, RouteKind.OWNER, RouteKind.ANY})


class CannotForward(Exception):
    """The client's connection has to be closed, as there is no other way to report the reason."""


# The exceptions of forwarding. In each case the connection is closed.
FAULTS = (CannotForward, InvalidFrameSize, MalformedMessage)


class RequestForwarder:
    __slots__ = (
        "_enough",
        "_frames",
        "_kept_from",
        "_local_answers",
        "_replies",
        "_state",
        "_target",
        "_waits_for_replies",
        "_workers",
        "hands_over",
        "is_stopped",
        "kept",
        "on_versions",
        "private",
        "session_is_over",
        "uses_logins",
        "yields",
    )

    def __init__(
        self, state: RouterState, workers: WorkerConnections, replies: ReplyQueue, listener: str
    ) -> None:
        self._state = state
        self._local_answers = state.local_answers(listener)
        self._workers = workers
        self._replies = replies
        self.kept: bytes | bytearray = b""  # received and not forwarded yet,
        self._kept_from = 0  # from here on
        self._enough = 0  # how much has to be kept before it is worth looking at again
        self._target: WorkerConnection | None = None  # gets the rest of the current request
        self._frames = FrameTracker(MIN_REQUEST, state.max_request_bytes)
        self._waits_for_replies = False  # the next request continues when nothing is unanswered
        self.yields = False  # other connections take their turn first
        self.is_stopped = False  # no further request is forwarded
        self.uses_logins = False  # the client has logged in, and may do so again
        self.hands_over = False  # what is kept begins a login
        self.session_is_over = False  # only a login is accepted
        # Replies to private requests (b"" if it has none): set for the operator's connections.
        self.private: Callable[[bytes], bytes | None] | None = None
        # Sees the client's ApiVersions requests: set if its name and version are wanted.
        self.on_versions: Callable[[bytes], None] | None = None

    # --- state ---

    @property
    def may_read(self) -> bool:
        """True if more requests can be taken from the client."""
        if self.is_stopped:
            return self._frames.left > 0
        return not self._must_wait

    @property
    def _must_wait(self) -> bool:
        """True if the next request cannot be forwarded although it was received."""
        replies = self._replies
        return (
            self.is_stopped
            or self.yields
            or (self._waits_for_replies and len(replies) > 0)
            or not replies.has_room
        )

    @property
    def is_inside_request(self) -> bool:
        """True if a part of a request was forwarded, and its rest has not arrived yet."""
        return self._frames.left > 0

    @property
    def memory(self) -> int:
        """The bytes that are kept, and those that the worker has not taken of an incomplete
        request."""
        memory = len(self.kept)
        if self._frames.left and self._target is not None:
            memory += self._target.transport.unsent_bytes
        return memory

    @property
    def unfinished(self) -> tuple[int, int]:
        """Return how much of the last request has arrived, and its size; 0, 0 if it is complete or
        waits for something else."""
        frames = self._frames
        if frames.left:
            return frames.size - frames.left, frames.size
        start, have = self._kept_from, len(self.kept) - self._kept_from
        if not self._enough or have < LENGTH_SIZE:
            return 0, 0
        size = LENGTH_SIZE + int(LENGTH.unpack_from(self.kept, start)[0])
        return (have, size) if have < size else (0, 0)

    def is_halfway_to(self, connection: WorkerConnection) -> bool:
        """True if this worker has received only a part of a request."""
        return self._frames.left > 0 and self._target is connection

    def stop(self) -> None:
        """Forward nothing more, except for the rest of the current request."""
        self.is_stopped = True
        self.kept, self._kept_from = b"", 0

    # --- forwarding ---

    def receive(self, data: bytes) -> bool:
        """Forward bytes from the client. Returns True if `may_read` may have changed. Raises
        FAULTS."""
        if not (self.kept or self._frames.left or self.is_stopped):
            # The usual case takes as little work as possible: one whole request that begins with
            # the same bytes as an earlier one.
            size = len(data) - LENGTH_SIZE
            if (
                MIN_REQUEST <= size <= self._state.max_request_bytes
                and LENGTH.unpack_from(data)[0] == size
            ):
                known = self._workers.known.find(data, LENGTH_SIZE, size)
                if known is not None:
                    connection = known.connection
                    connection.transport.write(data)
                    return not self._replies.expect(connection.replies)
                return self._forward(data, 0, look_up=False)
        elif self.kept:
            kept = self.kept
            if not isinstance(kept, bytearray):
                kept = self.kept = bytearray(memoryview(kept)[self._kept_from :])
                self._kept_from = 0
            kept += data
            self.go_on()
            return True
        return self._forward(data, 0)

    def go_on(self) -> None:
        """Forward what was kept, if that is possible now. Raises FAULTS."""
        kept, start = self.kept, self._kept_from
        if len(kept) - start >= self._enough and not (self._must_wait or self._workers.blocked):
            self.kept, self._kept_from = b"", 0
            self._forward(bytes(kept), start)

    def _forward(self, data: bytes, at: int, look_up: bool = True) -> bool:
        """Forward what was received from `at` on, in whole requests and pieces, and keep the rest.
        Returns True if `may_read` may have changed. `look_up` is False for one request without a
        known route."""
        start = at  # contiguous bytes for `target` are forwarded in one piece
        have = len(data)
        target: WorkerConnection | None = None
        replies, known = self._replies, self._workers.known
        self._enough = 0
        frames = self._frames
        if frames.left:
            at += frames.resume(have - at)
            target = self._target
        if self._waits_for_replies and not replies:
            self._waits_for_replies = False
        may_go_on = not (self.is_stopped or self.yields) and replies.has_room
        requests = 0
        while at < have and may_go_on:
            if requests >= MAX_PER_TURN:
                self.yields = True
                break
            size = frames.size_at(data, at)
            if size is None:
                self._enough = LENGTH_SIZE
                break
            requests += 1
            end = at + LENGTH_SIZE + size
            connection: WorkerConnection | None
            frame_at = at + LENGTH_SIZE
            found = known.find(data, frame_at, size) if look_up else None
            if found is not None:
                connection = found.connection
                may_go_on = replies.expect(connection.replies)
            else:
                route, depends_on = self._find_route(data, frame_at, min(end, have), size)
                kind = route.kind
                if kind is RouteKind.MORE:
                    self._enough = min(end - at, max(2 * (have - at), 64))
                    break
                if kind is RouteKind.SPREAD and not self._may_spread():
                    break
                if self.uses_logins and self._begins_login(kind, data, frame_at):
                    break
                if kind not in FORWARDED:
                    # Forward earlier bytes first: workers see requests in the client's order.
                    _send(target, data, start, at)
                    target = None
                    self._serve(route, data[frame_at:end])
                    requests += SERVED_HERE - 1
                    at = start = end
                    may_go_on = replies.has_room
                    continue
                connection = self._choose(route, data, frame_at, end)
                if connection is not None and depends_on:
                    head = data[frame_at : frame_at + depends_on]
                    self._workers.remember(route, depends_on, head, connection)
                may_go_on = replies.has_room
            if connection is not target:
                _send(target, data, start, at)
                target, start = connection, at
            if end <= have:
                at = end
            else:
                at = frames.enter(at, size, have)
                self._target = connection
            if connection is None:
                start = at
        _send(target, data, start, at)
        if at < have and not self.is_stopped:
            self._keep(data, at)
        return at < have or not may_go_on or frames.left > 0

    def _keep(self, data: bytes, at: int) -> None:
        """Keep bytes that were not forwarded, without a copy while they are most of the buffer."""
        if 2 * at < len(data):
            self.kept, self._kept_from = data, at
        else:
            self.kept, self._kept_from = data[at:], 0

    def _find_route(self, data: bytes, at: int, end: int, size: int) -> tuple[Route, int]:
        table = self._state.routing_table
        if end - at == size:
            return find_route(data[at:end], size, table)
        found = find_route(data[at : min(end, at + FIRST_HEAD_BYTES)], size, table)
        if found[0].kind is RouteKind.MORE and end - at > FIRST_HEAD_BYTES:
            found = find_route(data[at:end], size, table)
        return found

    def _begins_login(self, kind: RouteKind, data: bytes, at: int) -> bool:
        """True if a client logs in again, once nothing is unanswered."""
        if kind is RouteKind.LOGIN and data[at : at + 2] == _SASL_HANDSHAKE:
            if self._replies:
                self._waits_for_replies = True
            else:
                self.hands_over = True
            return True
        if self.session_is_over:
            raise CannotForward("its session has ended, and it did not log in again")
        return False

    def end_session(self) -> None:
        """Accept only a login from now on."""
        self.session_is_over = True
        self._workers.known.clear()

    def use_listener(self, listener: str) -> None:
        """Treat the client as one of this listener, which also decides the addresses of brokers it
        gets."""
        self._local_answers = self._state.local_answers(listener)

    def resume_after_login(self) -> None:
        self.uses_logins = True
        self.hands_over = self.session_is_over = False

    def take_kept(self) -> bytes:
        kept = bytes(memoryview(self.kept)[self._kept_from :])
        self.kept, self._kept_from = b"", 0
        return kept

    # --- where a request goes ---

    def _may_spread(self) -> bool:
        """True if a Produce to several leaders can be sent. The first one must not overtake, or be
        overtaken by, those sent to the leaders; from then on all go to one worker."""
        if self._replies and not self._workers.has_spread:
            self._waits_for_replies = True
            return False
        return True

    def _choose(self, route: Route, data: bytes, at: int, end: int) -> WorkerConnection | None:
        """Choose the connection for a request, whose reply is expected from now on. Returns None if
        it was answered here."""
        kind, workers = route.kind, self._workers
        connection: WorkerConnection | None
        if kind is RouteKind.OWNER:
            connection = workers.to_owner(route.worker)
            if connection is None:
                self._reply_unavailable(data, at, end)
                return None
        elif kind is RouteKind.ANY:
            connection = workers.to_any()
        else:
            connection = workers.to_leader(route)
        if connection is None:
            raise CannotForward("no worker is up")
        if route.has_reply:
            self._replies.expect(connection.replies)
        else:
            connection.sent_without_reply = True
        return connection

    def _serve(self, route: Route, frame: bytes) -> None:
        """Reply to a request here, or gather its reply from several workers."""
        if route.kind is RouteKind.REFUSED:
            own = self.private(frame) if self.private is not None else None
            if own is not None:
                if own:
                    self._replies.add(own)
                return
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            raise MalformedMessage(f"API {key} v{version} is not served")
        if route.kind is RouteKind.LOGIN:
            self._replies.add(self._local_answers.refuse_login(frame))
            return
        if route.kind is RouteKind.LOCAL:
            self._replies.add(self._local_answers.reply(frame))
            if self.on_versions is not None and frame[:2] == _API_VERSIONS:
                self.on_versions(frame)
            return
        header = read_request_header(frame)
        assert header.api is not None
        parts: Sequence[RequestPart] = route.parts
        if route.kind is RouteKind.EVERY:
            whole = LENGTH.pack(len(frame)) + frame
            workers = range(len(self._state.workers))
            parts = [RequestPart(worker, whole, None) for worker in workers]
        gathered = GatheredReply(
            header.api, header.api_version, header.correlation_id, route.keys, parts
        )
        self._replies.expect_gathered(gathered)
        for part in parts:
            connection = self._workers.to_owner(part.worker)
            if connection is None:
                gathered.fail(part.worker)
                continue
            self._replies.expect_part(connection.replies, gathered, part.worker)
            connection.transport.write(part.frame)
        self._replies.advance()

    def _reply_unavailable(self, data: bytes, at: int, end: int) -> None:
        """Reply that the coordinator is down, or close the connection if the API has no such
        error."""
        reply = unavailable_reply(data[at:end]) if end <= len(data) else None
        if reply is None:
            raise CannotForward("the coordinator of its request is down")
        self._replies.add(reply)


def _send(connection: WorkerConnection | None, data: bytes, start: int, end: int) -> None:
    if connection is not None and start != end:
        connection.transport.write(piece_of(data, start, end))
