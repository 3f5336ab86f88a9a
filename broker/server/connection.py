"""A client's connection: frames in, replies out in the order of their requests.

Replies completed in one turn of the event loop go out in one write. flow_control.py decides when
the connection is read from, and when its requests are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import MappingProxyType
from typing import cast

import msgspec

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.net import descriptors
from moldau.broker.net.peer import identify
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity, Role
from moldau.broker.security.login_steps import MIN_TOKEN
from moldau.broker.server.call import Call, Dispatch, Limiter, Metering, RequestRoute
from moldau.broker.server.flow_control import (
    MAX_BACKLOG,
    MAX_BACKLOG_BYTES,
    MAX_SERVED_PER_TURN,
    MAX_UNANSWERED,
    MUTED,
    WRITE_HIGH_WATER,
    FlowControl,
)
from moldau.broker.server.limits import Budget
from moldau.broker.server.login import Login, Logins
from moldau.broker.server.piecewise import PIECE, PiecewiseWriter
from moldau.broker.settings.processes import Listener
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import RequestHeader, read_request_header
from moldau.broker.wire.framing import MIN_REQUEST, InvalidFrameSize, coalesce
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.repeats import RequestCache

logger = logging.getLogger("moldau.server")
limited = LimitedLog(logger)

PREAMBLE_KEY = PREAMBLE.key


class Connection(FlowControl):
    # There are more attributes than a shared instance layout holds: without slots, access would be
    # slower. Only `serve_with` uses `__dict__`.
    __slots__ = (
        "__dict__",
        "_connections",
        "_dispatch",
        "_flush_scheduled",
        "_max_frame",
        "_out",
        "_received_ns",
        "_receiving",
        "counters",
        "identity",
        "listener",
        "login",
        "logins",
        "may_write",
        "metering",
        "routes",
    )

    def __init__(
        self,
        dispatch: Dispatch,
        budget: Budget,
        connections: set[Connection],
        max_frame: int,
        listener: Listener | None,
        counters: RequestCounters | None = None,
        *,
        logins: Mapping[str, Logins] = MappingProxyType({}),
        metering: Metering | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        """`listener`: where it came in; None on the unix socket. `counters`: those of the worker.
        `logins`: by the listeners whose clients have to log in. `metering`: None when no client
        has a quota."""
        super().__init__(budget, max_frame, limiter)
        self.counters = counters or RequestCounters()
        self._received_ns = 0  # when the frames being served arrived
        self._receiving = False  # replies completed meanwhile go out at the end
        self._dispatch = dispatch
        self._connections = connections
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self.metering = metering
        self.listener = listener
        self.identity = Identity()
        self.routes: RequestCache[RequestRoute] = RequestCache()
        self.may_write: set[str] = set()  # topics that the authorizer has allowed
        self.logins = logins
        self._max_frame = max_frame
        self.login: Login | None = None

    # --- receiving ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.last_active = self._loop.time()
        self._connections.add(self)
        # Over a unix socket routers and workers first send the identity of their client
        # (`_introduced`).
        identity = identify(transport, self.listener)
        if identity is None:
            self.abort()
            return
        self.identity = identity
        limiter, listener = self.limiter, self.listener
        if limiter is not None and listener is not None:
            self.closing = not limiter.admit(self, transport, identity.host, listener)
        if listener is not None and listener.tls is not None:
            self._pieces = PiecewiseWriter(self._transport)
        if listener is not None and listener.uses_sasl and not self.closing:
            self._begin_login(listener.name)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._frames
        try:
            frames = reader.received(nbytes)
        except InvalidFrameSize as fault:
            limited.warning(fault.kind, "closing %s: %s", self.peer, fault)
            if self.limiter is not None:
                self.limiter.unreadable(fault.reason)
            self.abort()
            return
        if reader.has_changed:
            self._count_memory(is_new=bool(frames))
        if not frames:
            self.last_active = self._loop.time()  # slow is not idle
            return
        self._receiving = True
        loop_clock.now_ns = self._received_ns = monotonic_ns()
        self.counters.bytes_in += nbytes
        for frame in frames:
            if not (self._backlog or self._read_paused or self._held or self.closing):
                self._serve(frame)
            elif not self.closing:
                self._backlog.append(frame)
                self._backlog_bytes += len(frame)
                reader.has_changed = True
                if (
                    len(self._backlog) >= MAX_BACKLOG
                    or self._backlog_bytes >= MAX_BACKLOG_BYTES
                    or self._held & MUTED
                ):
                    self._pause()
        if reader.has_changed:  # frames wait in the backlog
            self._count_memory()
        self._receiving = False
        if self._out and not self._flush_scheduled:
            self._flush()  # what was answered at once

    def _serve(self, frame: bytearray) -> None:
        if self._served_this_turn == MAX_SERVED_PER_TURN:
            self._backlog.appendleft(frame)
            self._backlog_bytes += len(frame)
            self._frames.has_changed = True
            self._yield_turn()
            return
        self._served_this_turn += 1
        size = len(frame)
        route = self.routes.find(frame, 0, size)
        metering = self.metering
        if route is not None:
            if not self._calls and metering is None:
                answer = route.answer(frame)
                if answer is not None:
                    self.counters.at_once[route.header.api_key] += 1
                    self._out.append(answer)
                    if not self._receiving:
                        self._flush_soon()
                    return
            header = route.header_of(frame)
        else:
            try:
                header = read_request_header(frame)
            except MalformedMessage as fault:
                limited.warning("malformed header", "closing %s: %s", self.peer, fault)
                self.abort()
                return
            if header.api_key == PREAMBLE_KEY and self.listener is None:
                self._introduced(header, frame)
                return
        if metering is None:
            call = Call(self, header, size, self._received_ns)
        else:
            call = metering.call(self, header, size)
            call.received_ns = self._received_ns
        self._calls.append(call)
        self._unanswered_bytes += size
        budget = self._budget
        budget.used += size  # `take`, without a call for each request
        try:
            if route is None or not route.serve(call, frame):
                self._dispatch(call, frame)
        except Exception:
            # Not raised: the caller may be another connection, whose reply made room.
            logger.exception("closing %s: serving its request failed", self.peer)
            self.abort()
            return
        if metering is not None:
            metering.dispatched(call)
        if (
            len(self._calls) >= MAX_UNANSWERED
            or self._unanswered_bytes > budget.per_connection
            or budget.used >= budget.most_used
        ):
            self._pause()

    def _introduced(self, header: RequestHeader, frame: bytearray) -> None:
        try:
            self.identity = identity = PREAMBLE.read_request(memoryview(frame)[header.body_at :])
        except ValueError as fault:
            logger.warning("closing a unix connection: its preamble cannot be read: %s", fault)
            self.abort()
            return
        self.forget_routes()
        if self._transport is not None and descriptors.is_nearly_last(
            self._transport.get_extra_info("socket").fileno()
        ):
            limited.warning("descriptors", "a router's connection is refused: too many open files")
            self.abort()
            return
        if identity.role is Role.UNAUTHENTICATED:
            self._begin_login(identity.listener)
        elif identity.revision or identity.token:
            logins = self.logins.get(identity.listener)
            if logins is None or not logins.is_current(
                identity.user, identity.revision, identity.token
            ):
                self.abort()  # the session is over; the router notices

    # --- logging in ---

    def _begin_login(self, listener: str) -> None:
        logins = self.logins.get(listener)
        if logins is None:
            logger.error("closing %s: listener %r is not known here", self.peer, listener)
            self.abort()
            return
        self.identity = msgspec.structs.replace(self.identity, role=Role.UNAUTHENTICATED)
        self.login = Login(self, logins, is_relayed=self.listener is None)
        self.serve_with(self.login.serve)

    def expect_tokens(self, most: int) -> None:
        """Accept the frames of a login, of at most this many bytes."""
        self._frames.limit(MIN_TOKEN, most)

    def serve_with(self, serve: Callable[[bytearray], None] | None) -> None:
        """Replace `_serve`, so that it needs no branch for logins; None restores it."""
        if serve is None:
            self._frames.limit(MIN_REQUEST, self._max_frame)
            self.__dict__.pop("_serve", None)
        else:
            self.__dict__["_serve"] = serve

    def take(self, header: RequestHeader, size: int) -> Call:
        """Add a request that is served by such a replacement, and has to be answered."""
        call = Call(self, header, size, self._received_ns)
        self._calls.append(call)
        self._unanswered_bytes += size
        self._budget.take(size)
        return call

    def push(self, frame: bytes) -> None:
        """Send a notice to a router."""
        self._out.append(frame)
        self._flush_soon()

    def know_software(self, software: tuple[str, str]) -> None:
        """Remember the name and version that the client gave."""
        self.identity = msgspec.structs.replace(self.identity, software=software)

    def forget_routes(self) -> None:
        """Check every request again: the client's identity or its rights have changed."""
        self.routes = RequestCache()
        self.may_write.clear()

    @property
    def is_clients(self) -> bool:
        """Whether it is a client's, directly or through a router."""
        return self.listener is not None or self.identity.role in (
            Role.CLIENT,
            Role.UNAUTHENTICATED,
        )

    @property
    def peer(self) -> str:
        """The client's address, also behind a router."""
        return self.identity.host

    # --- replying ---

    def answered(self, call: Call) -> None:
        """Send the reply of a call, and later replies that waited for it."""
        calls = self._calls
        if not calls or (parts := calls[0].parts) is None:
            return
        out = self._out
        freed = 0
        now, durations = loop_clock.now_ns, self.counters.durations
        while parts is not None:
            answered = calls.popleft()
            freed += answered.size
            out += parts
            counts = durations.get(answered.header.api_key)
            if counts is not None:
                counts[(now - answered.received_ns).bit_length()] += 1
            parts = calls[0].parts if calls else None
        self._unanswered_bytes -= freed
        self._budget.give_back(freed)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled and not self._receiving:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out, self._out = self._out, []
        transport = self._transport
        if transport is None:
            return
        if out:
            parts = coalesce(out)
            size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
            self.counters.bytes_out += size
            if self._pieces is not None and (size > PIECE or self._pieces):
                self._pieces.write(parts)
            elif len(parts) == 1:
                transport.write(parts[0])
            else:
                transport.writelines(parts)
            if self._write_paused:
                self._count_unsent(self._left_to_write(transport))
        self.last_active = self._loop.time()
        if self.closing and not self._calls and not self._pieces:
            transport.close()
        elif self._read_paused:
            self.ease()

    def resume_writing(self) -> None:
        super().resume_writing()
        transport = self._transport
        is_idle = not (self._write_paused or self._calls or self._out)
        if self.closing and is_idle and transport is not None:
            transport.close()

    # --- the end ---

    def drain(self) -> None:
        """Serve no further request, and close after the last reply."""
        self.closing = True
        self._end_mute()
        if self._transport is None:
            return
        if not (self._calls or self._out or self._flush_scheduled or self._pieces):
            self._transport.close()
        else:
            self._pause()

    def abort(self) -> None:
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served; part of one may have been received."""
        return not self._calls

    def close_idle(self) -> None:
        if self._write_paused or self._frames.is_inside_frame:
            what = "does not read its replies" if self._write_paused else "sent half a request"
            logger.warning("closing %s: it %s, and was idle for too long", self.peer, what)
            self.abort()
        else:
            self.drain()

    def end(self) -> None:
        """Close now, whatever is being served. What was already written reaches the client."""
        self.closing = True
        if self._pieces is not None:
            self._pieces.discard()
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._end_mute()
        if self.limiter is not None:
            self.limiter.left(self)
        if self.login is not None:
            self.login.closed()
            self.login = None
            self.__dict__.pop("_serve", None)
        self._transport = None
        self._connections.discard(self)
        self._budget.give_back(self._unanswered_bytes)
        self._budget.leave(self)
        self._count_unsent(0)
        self._unanswered_bytes = 0
        calls, self._calls = self._calls, deque()
        for call in calls:
            if call.on_lost is not None:
                call.on_lost()
        self._drop_received()
        self._out.clear()
        if self._pieces is not None:
            self._pieces.discard()
