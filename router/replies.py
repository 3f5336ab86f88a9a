"""A client's connection to the router, seen from its end: replies in the order of requests,
back-pressure, hanging up.

What waits for what is a queue of turns, one per unanswered request: the connection to the worker
that will answer it, a reply of the router's own, or an answer being gathered. Whoever's turn it is
writes to the client; the others' replies wait on their sockets.

Nothing is buffered without bound: the client is not read from while a worker's socket is full,
while it does not read its own replies, or while it has too many requests out. How its requests are
taken is in client.py.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from typing import cast

from router.gathered_reply import Gather
from router.state import Hub
from router.worker_connection import Upstream
from router.worker_connections import Routes

log = logging.getLogger("moldau.router")

MAX_UNANSWERED = 512  # requests; clients pipeline five by default
MAX_READY = 1 << 20  # bytes of the router's own replies that wait for their turn
WRITE_HIGH_WATER = 256 * 1024
SLICE_FROM = 8192  # larger pieces of what was received are not copied again
LINGER_S = 5.0

Turn = Upstream | Gather | bytes


class ClientReplies(asyncio.Protocol):
    __slots__ = (
        "_blocked",
        "_draining",
        "_hub",
        "_left",
        "_pending",
        "_reading",
        "_ready_bytes",
        "_routes",
        "_stream",
        "_transport",
        "_waits_for_all",
        "is_closed",
        "is_write_paused",
        "last_active",
        "peer",
        "turns",
        "was_active",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.turns: deque[Turn] = deque()
        self.was_active = True  # since somebody last looked
        self.last_active = 0.0  # when somebody last looked and it had been
        self.is_closed = False
        self.is_write_paused = False
        self._pending = bytearray()  # received, and not sent on yet
        self._stream: Upstream | None = None  # takes the rest of the current request
        self._left = 0  # bytes of which are still to come
        self._waits_for_all = False  # the next request is sent when nothing is unanswered
        self._ready_bytes = 0
        self._routes = Routes(self, hub)
        self._blocked: set[Upstream] = set()  # connecting, or full
        self._reading = True
        self._draining = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "unix"
        self._hub.clients.add(self)

    @abstractmethod
    def _go_on(self) -> None:
        """Look at what was kept of requests, if it can go now."""

    @property
    def _must_wait(self) -> bool:
        """The next request, though it is here, has to wait."""
        return (
            self._waits_for_all
            or len(self.turns) >= MAX_UNANSWERED
            or self._ready_bytes > MAX_READY
            or self.is_closed
        )

    # --- replies ---

    def _reply(self, reply: bytes) -> None:
        self.turns.append(reply)
        self._ready_bytes += len(reply)
        self.advance()

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

    def pass_on(self, upstream: Upstream, reply: bytes) -> None:
        """The whole reply of the worker whose turn it is, which has sent nothing beyond it."""
        turns, transport = self.turns, self._transport
        if transport is None:
            return
        turns.popleft()
        transport.write(reply)
        if turns:
            is_others_turn = turns[0] is not upstream
        else:
            is_others_turn = self._draining or self._waits_for_all
        if is_others_turn or self._pending or not self._reading:
            self.advance()
        self.was_active = True

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
            self.was_active = True
            if self._draining:
                self.close()
                return
            self._waits_for_all = False
        if self._pending:
            self._go_on()
        if not self._reading:
            self._set_reading()

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
        for upstream in self._routes.every:
            upstream.set_reading()
        self._set_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        for upstream in self._routes.every:
            upstream.set_reading()
        self.advance()
        self._set_reading()

    # --- the end ---

    def leads_to(self, worker: int) -> bool:
        """Whether a connection to this worker is open, or being opened."""
        return any(upstream.worker == worker for upstream in self._routes.every)

    def is_idle(self, now: float, idle_s: float) -> bool:
        """Nothing is unanswered or new for `idle_s`; what is new at a look counts from then."""
        if self.was_active:
            self.was_active, self.last_active = False, now
        return not self.turns and now - self.last_active > idle_s

    def upstream_failed(self, upstream: Upstream) -> None:
        """A worker could not be reached, so nothing was sent: another one gets it all.

        What only the one could have answered, the other refuses with NOT_COORDINATOR.
        """
        self._hub.workers.failed(upstream.worker)
        if self.is_closed or not self._routes.redirect(upstream):
            self.upstream_lost(upstream)

    def upstream_lost(self, upstream: Upstream) -> None:
        """A worker hung up: what it owes cannot come any more."""
        self._routes.lost(upstream)
        if self.is_closed:
            return
        owed, upstream.expected = upstream.expected, deque()
        is_cut = self._left > 0 and self._stream is upstream
        if is_cut or upstream.is_silent or None in owed:
            # Clients take a closed connection for what it is, and ask again.
            log.info(
                "closing %s: worker %d left its requests unanswered", self.peer, upstream.worker
            )
            self.close()
            return
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
        self._routes.close()
        self._blocked.clear()
        self.turns.clear()
        self._pending = bytearray()
        self._stream = None
