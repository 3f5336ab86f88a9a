"""A client's connection to the router: requests planned and sent on, replies in their order.

What waits for what is a queue of turns, one per unanswered request: the connection to the worker
that will answer it, a reply of the router's own, or an answer being gathered. Whoever's turn it is
writes to the client; the others' replies wait on their sockets.

Nothing is buffered without bound: requests go on in the pieces in which they come, and the client
is not read from while a worker's socket is full, while it does not read its own replies, or while
it has too many requests out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import cast

from broker.config import Endpoint
from broker.wire.frame import LENGTH, read_request_header, response_frame
from broker.wire.primitives import MalformedMessage
from router.gather import Gather
from router.link import Upstream, Workers
from router.local import answer
from router.plan import Context, Kind, Part, Plan, plan
from router.refusal import refusal

log = logging.getLogger("moldau.router")

SMALLEST_FRAME = 8
# Enough to plan nearly every request; what is larger is looked at again, whole.
FIRST_HEAD = 2048
MAX_UNANSWERED = 512  # requests; clients pipeline five by default
MAX_READY = 1 << 20  # bytes of the router's own replies that wait for their turn
WRITE_HIGH_WATER = 256 * 1024
SLICE_FROM = 8192  # larger pieces of what was received are not copied again

FORWARDED = frozenset({Kind.LEADER, Kind.SPREAD, Kind.OWNER, Kind.ANY})
LINGER_S = 5.0
CONTROLLER = 0

Turn = Upstream | Gather | bytes


class Hub:
    """What the client connections of one router share."""

    def __init__(
        self, workers: Workers, brokers: Sequence[Endpoint], max_request_bytes: int
    ) -> None:
        self.workers = workers
        self.brokers = brokers
        self.max_request_bytes = max_request_bytes
        self.context = Context(len(workers))
        self.clients: set[Client] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def connect(self, upstream: Upstream) -> None:
        task = self.loop.create_task(upstream.open(self.workers.paths[upstream.worker]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Client(asyncio.Protocol):
    __slots__ = (
        "_all",
        "_any",
        "_blocked",
        "_draining",
        "_enough",
        "_home",
        "_hub",
        "_leaders",
        "_left",
        "_pending",
        "_reading",
        "_ready_bytes",
        "_stream",
        "_transport",
        "_upstreams",
        "_waits_for_all",
        "is_closed",
        "is_write_paused",
        "last_active",
        "peer",
        "turns",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.turns: deque[Turn] = deque()
        self.last_active = 0.0
        self.is_closed = False
        self.is_write_paused = False
        self._pending = bytearray()  # received, and not sent on yet
        self._enough = 0  # how much of it is worth looking at again
        self._stream: Upstream | None = None  # takes the rest of the current request
        self._left = 0  # bytes of which are still to come
        self._ready_bytes = 0
        self._all: set[Upstream] = set()
        self._upstreams: dict[int, Upstream] = {}  # by the worker they lead to
        self._leaders: dict[int, Upstream] = {}  # whom a leader's requests go to
        self._any: Upstream | None = None
        self._home: Upstream | None = None  # once it has produced to several leaders at once
        self._waits_for_all = False  # the next request is sent when nothing is unanswered
        self._blocked: set[Upstream] = set()  # connecting, or full
        self._reading = True
        self._draining = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "unix"
        self.last_active = self._hub.loop.time()
        self._hub.clients.add(self)

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        self.last_active = self._hub.loop.time()
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._enough or self._must_wait:
                self._set_reading()
                return
            data = bytes(pending)
            self._pending = bytearray()
        self._take(data)

    @property
    def _must_wait(self) -> bool:
        """The next request, though it is here, has to wait."""
        return (
            self._waits_for_all
            or len(self.turns) >= MAX_UNANSWERED
            or self._ready_bytes > MAX_READY
            or self.is_closed
        )

    def _take(self, data: bytes) -> None:
        """Send on what came, whole requests and pieces; keep what cannot be sent yet."""
        at = start = 0  # what lies between them goes to `target` in one piece
        have = len(data)
        target: Upstream | None = None
        self._enough = 0
        if self._left:
            at = min(self._left, have)
            self._left -= at
            target = self._stream
        try:
            while at < have and not self._must_wait and not self._draining:
                size = self._size_at(data, at, have)
                if size is None:
                    break
                end = at + 4 + size
                planned = self._plan_at(data, at + 4, min(end, have), size)
                if planned.kind is Kind.MORE:
                    self._enough = min(end - at, max(2 * (have - at), 64))
                    break
                if planned.kind is Kind.SPREAD and not self._can_spread():
                    break
                if planned.kind not in FORWARDED:
                    # First what stands before it: workers see requests in the client's order.
                    _send(target, data, start, at)
                    target = None
                    self._serve(planned, data[at + 4 : end])
                    at = start = end
                    continue
                upstream = self._route(planned, data, at, end)
                if upstream is not target:
                    _send(target, data, start, at)
                    target, start = upstream, at
                at = min(end, have)
                if upstream is None:
                    start = at
                elif end > have:
                    self._stream, self._left = upstream, end - have
        except MalformedMessage as fault:
            log.warning("closing %s: %s", self.peer, fault)
            self.close()
            return
        _send(target, data, start, at)
        if self.is_closed:
            return
        if at < have and not self._draining:
            self._pending = bytearray(memoryview(data)[at:])
        if at < have or self._blocked or len(self.turns) >= MAX_UNANSWERED:
            self._set_reading()

    def _size_at(self, data: bytes, at: int, have: int) -> int | None:
        """The size of the request that begins there; None: that has not come yet."""
        if have - at < 4:
            self._enough = 4
            return None
        size: int = LENGTH.unpack_from(data, at)[0]
        if not SMALLEST_FRAME <= size <= self._hub.max_request_bytes:
            most = self._hub.max_request_bytes
            text = f"a frame of {size} bytes (at most {most}; is it a Kafka client?)"
            raise MalformedMessage(text)
        return size

    def _plan_at(self, data: bytes, at: int, end: int, size: int) -> Plan:
        hub = self._hub
        if end - at == size:
            return plan(data[at:end], size, hub.context)
        planned = plan(data[at : min(end, at + FIRST_HEAD)], size, hub.context)
        if planned.kind is Kind.MORE and end - at > FIRST_HEAD:
            planned = plan(data[at:end], size, hub.context)
        return planned

    def _can_spread(self) -> bool:
        """May a Produce to several leaders go? From the first one on all go to one worker."""
        if self._home is None and self.turns:
            self._waits_for_all = True
            return False
        return True

    def _route(self, planned: Plan, data: bytes, at: int, end: int) -> Upstream | None:
        """Whom to send a request to, its turn taken; None: it was dealt with here."""
        kind = planned.kind
        upstream: Upstream | None
        if kind is Kind.LEADER or kind is Kind.SPREAD:
            upstream = self._leader(planned)
        elif kind is Kind.OWNER:
            upstream = self._upstreams.get(planned.worker)
            if upstream is None:
                if not self._hub.workers.is_up[planned.worker]:
                    self._refuse(data, at, end)
                    return None
                upstream = self._open(planned.worker)
        else:
            upstream = self._any or self._choose_any()
        if upstream is None:
            log.warning("closing %s: no worker is there", self.peer)
            self.close()
            return None
        if planned.answered:
            self.turns.append(upstream)
            upstream.expected.append(None)
        else:
            upstream.is_silent = True
        return upstream

    def _leader(self, planned: Plan) -> Upstream | None:
        if self._home is not None and planned.is_produce:
            return self._home
        worker = planned.worker
        upstream = self._leaders.get(worker)
        if upstream is None or (
            # Back to the leader that was away, when no request of ours can be overtaken.
            upstream.worker != worker and not self.turns and self._hub.workers.is_up[worker]
        ):
            chosen = self._hub.workers.choose(worker)
            if chosen is None:
                return None
            upstream = self._leaders[worker] = self._upstreams.get(chosen) or self._open(chosen)
        if planned.kind is Kind.SPREAD:
            self._home = upstream
        return upstream

    def _choose_any(self) -> Upstream | None:
        """The controller, as clients are told, while it is there: who creates a topic and then
        looks for it finds it."""
        chosen = self._hub.workers.choose(CONTROLLER)
        if chosen is not None:
            self._any = self._upstreams.get(chosen) or self._open(chosen)
        return self._any

    def _open(self, worker: int) -> Upstream:
        upstream = Upstream(self, worker, self._hub.loop)
        self._upstreams[worker] = upstream
        self._all.add(upstream)
        self._blocked.add(upstream)
        self._hub.connect(upstream)
        return upstream

    def _serve(self, planned: Plan, frame: bytes) -> None:
        """Answer a request here, or gather its answer from several workers."""
        hub = self._hub
        if planned.kind is Kind.REFUSED:
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            raise MalformedMessage(f"API {key} v{version} is not served")
        header = read_request_header(frame)
        if planned.kind is Kind.LOCAL:
            self._reply(b"".join(answer(header, frame, hub.brokers, len(hub.workers))))
            return
        assert header.api is not None
        parts: Sequence[Part] = planned.parts
        if planned.kind is Kind.EVERY:
            whole = LENGTH.pack(len(frame)) + frame
            parts = [Part(worker, whole, None) for worker in range(len(hub.workers))]
        gather = Gather(header.api, header.api_version, header.correlation_id, planned.keys, parts)
        self.turns.append(gather)
        for part in parts:
            upstream = self._upstreams.get(part.worker)
            if upstream is None and not hub.workers.is_up[part.worker]:
                gather.fail(part.worker)
                continue
            upstream = upstream or self._open(part.worker)
            upstream.expected.append((gather, part.worker))
            upstream.send(part.frame)
        self.advance()

    def _refuse(self, data: bytes, at: int, end: int) -> None:
        """The coordinator is away: say so, or hang up where the protocol has no way to."""
        message = None
        if end <= len(data):
            frame = data[at + 4 : end]
            header = read_request_header(frame)
            assert header.api is not None
            codec = header.api.request_codec(header.api_version)
            request, _ = codec.decode(frame, header.body_at)
            message = refusal(header.api_key, header.api_version, request)
        if message is None:
            self.close()
            return
        assert header.api is not None
        reply = response_frame(header.api, header.api_version, header.correlation_id, message)
        self._reply(b"".join(reply))

    def _reply(self, reply: bytes) -> None:
        self.turns.append(reply)
        self._ready_bytes += len(reply)
        self.advance()

    # --- replies ---

    def write(self, data: bytes, start: int, end: int) -> None:
        """Pass a piece of what a worker replied on to the client."""
        if start == end or self._transport is None:
            return
        if end - start == len(data):
            self._transport.write(data)
        elif end - start < SLICE_FROM:
            self._transport.write(data[start:end])
        else:
            self._transport.write(memoryview(data)[start:end])

    def advance(self) -> None:
        """Write what can be: whoever's turn it is, until one has nothing yet."""
        turns, transport = self.turns, self._transport
        if transport is None:
            return
        while turns:
            turn = turns[0]
            if isinstance(turn, Upstream):
                if not turn.take_turn():
                    break
            elif isinstance(turn, bytes):
                turns.popleft()
                self._ready_bytes -= len(turn)
                transport.write(turn)
            elif turn.reply is not None:
                turns.popleft()
                transport.write(turn.reply)
            else:
                break
        if not turns:
            self.last_active = self._hub.loop.time()
            if self._draining:
                self.close()
                return
            self._waits_for_all = False
        if self._pending:
            self._go_on()
        if not self._reading:
            self._set_reading()

    def _go_on(self) -> None:
        """Look at what was kept, if it can go now."""
        if len(self._pending) >= self._enough and not self._must_wait and not self._blocked:
            data = bytes(self._pending)
            self._pending = bytearray()
            self._take(data)

    # --- back-pressure ---

    def _set_reading(self) -> None:
        wanted = not (
            self.is_write_paused
            or self._blocked
            or self._must_wait
            or (self._draining and not self._left)
        )
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def block(self, upstream: Upstream) -> None:
        self._blocked.add(upstream)
        self._set_reading()

    def unblock(self, upstream: Upstream) -> None:
        self._blocked.discard(upstream)
        if self._pending:
            self._go_on()
        self._set_reading()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        for upstream in self._all:
            upstream.set_reading()
        self._set_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        for upstream in self._all:
            upstream.set_reading()
        self.advance()
        self._set_reading()

    # --- the end ---

    @property
    def is_idle(self) -> bool:
        return not self.turns

    def upstream_failed(self, upstream: Upstream) -> None:
        """A worker could not be reached, so nothing was sent: another one gets it all.

        What only the one could have answered, the other refuses with NOT_COORDINATOR.
        """
        workers = self._hub.workers
        workers.failed(upstream.worker)
        self._forget(upstream)
        chosen = workers.choose(upstream.worker)
        if chosen is None or self.is_closed:
            self.upstream_lost(upstream)
            return
        upstream.worker = chosen
        self._hub.connect(upstream)

    def _forget(self, upstream: Upstream) -> None:
        """No further request of its worker goes there."""
        if self._upstreams.get(upstream.worker) is upstream:
            del self._upstreams[upstream.worker]

    def upstream_lost(self, upstream: Upstream) -> None:
        """A worker hung up: what it owes cannot come any more."""
        worker = upstream.worker
        self._all.discard(upstream)
        self._forget(upstream)
        self._leaders = {at: each for at, each in self._leaders.items() if each is not upstream}
        if self._any is upstream:
            self._any = None
        if self.is_closed:
            return
        owed, upstream.expected = upstream.expected, deque()
        is_cut = self._left > 0 and self._stream is upstream
        if is_cut or upstream.is_silent or None in owed:
            # Clients take a closed connection for what it is, and ask again.
            log.info("closing %s: worker %d left its requests unanswered", self.peer, worker)
            self.close()
            return
        if self._home is upstream:
            self._home = None
        for wanted in owed:
            assert wanted is not None
            gather, meant = wanted
            gather.fail(meant)
        self._blocked.discard(upstream)
        self.advance()
        self._set_reading()

    def drain(self) -> None:
        """Take no further request; close when those begun are answered."""
        self._draining = True
        self._pending = bytearray()
        if not self.turns:
            self.close()
        else:
            self._set_reading()

    def close(self) -> None:
        """Hang up; what is written already still gets to those who read."""
        transport = self._transport
        if transport is not None and not self.is_write_paused:
            if transport.get_write_buffer_size():
                self._hub.loop.call_later(LINGER_S, transport.abort)
            transport.close()
            self._leave()
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._hub.clients.discard(self)

    def _leave(self) -> None:
        self.is_closed = True
        self._transport = None
        upstreams, self._all = self._all, set()
        for upstream in upstreams:
            upstream.abort()
        self._upstreams.clear()
        self._leaders.clear()
        self._blocked.clear()
        self.turns.clear()
        self._pending = bytearray()
        self._any = self._home = self._stream = None


def _send(upstream: Upstream | None, data: bytes, start: int, end: int) -> None:
    """Send a piece of what the client sent on to a worker."""
    if upstream is None or start == end:
        return
    if end - start == len(data):
        upstream.send(data)
    elif end - start < SLICE_FROM:
        upstream.send(data[start:end])
    else:
        upstream.send(memoryview(data)[start:end])
