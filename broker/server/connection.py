"""A client's connection: frames in, replies out in the order of their requests.

Bytes are received into one buffer that all connections of the worker share (it is only ever in
use within one call); a frame is copied out of it once, or, when it is larger than the buffer, the
rest is received straight into the frame's own memory. Replies that are finished in one turn of
the event loop go out in one write.

Back-pressure: a connection with too many bytes of unanswered requests, or whose client does not
read its replies, is not read from until that has eased; the worker as a whole has a budget too.
Replies that wait for such a client are counted as well: others' fetches get smaller, not refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from broker.server.budget import Budget
from broker.server.repeats import Repeats
from broker.wire.batch import Buffer
from broker.wire.frame import (
    LENGTH,
    PEER_ADDRESS,
    RequestHeader,
    read_request_header,
    response_frame,
)
from broker.wire.parts import coalesce
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Message

log = logging.getLogger("moldau.server")

RECEIVE_BUFFER = 256 * 1024
FIRST_FRAME_MEMORY = 1 << 16
MAX_UNANSWERED = 512  # requests; clients pipeline five by default
MAX_BACKLOG = 8  # frames received behind one that holds the connection
WRITE_HIGH_WATER = 1 << 20

_receive_buffer = bytearray(RECEIVE_BUFFER)
_receive_view = memoryview(_receive_buffer)


class Call(msgspec.Struct, eq=False):
    """A request being served: what came with it, and the place of its reply."""

    connection: Connection
    header: RequestHeader
    size: int
    parts: list[Buffer] | None = None  # the reply, once there is one
    on_lost: Callable[[], None] | None = None  # told when nobody waits for it any more

    def reply(self, message: Message) -> None:
        header = self.header
        assert header.api is not None
        try:
            self.parts = response_frame(
                header.api, header.api_version, header.correlation_id, message
            )
        except Exception:
            log.exception("reply to %s v%d cannot be encoded", header.api.name, header.api_version)
            self.connection.abort()
            return
        self.connection.answered(self)

    def reply_with(self, frame: list[Buffer]) -> None:
        """Reply with a frame that is encoded already."""
        self.parts = frame
        self.connection.answered(self)

    def no_reply(self) -> None:
        """Served, and the protocol has no answer to it (Produce with acks=0)."""
        self.parts = []
        self.connection.answered(self)

    @property
    def peer(self) -> str:
        return self.connection.peer


Dispatch = Callable[[Call, bytearray], None]


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self, dispatch: Dispatch, budget: Budget, connections: set[Connection], max_frame: int
    ) -> None:
        self._dispatch = dispatch
        self._budget = budget
        self._connections = connections
        self._max_frame = max_frame
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()  # of a frame whose length has not come whole yet
        self._frame: bytearray | None = None  # one that is being received
        self._have = 0
        self._wanted = 0
        self._backlog: deque[bytearray] = deque()  # received whole, not begun for back-pressure
        self._calls: deque[Call] = deque()
        self._unanswered_bytes = 0
        self._out: list[Buffer] = []
        self._unsent = 0  # bytes of replies that wait for a client that does not read
        self._flush_scheduled = False
        self._receiving = False  # what is answered meanwhile goes out when that is over
        self._write_paused = False
        self._read_paused = False
        self._held = False
        self.closing = False
        self.last_active = 0.0
        self.peer = "?"
        self._is_local = False
        self.repeats = Repeats()

    # --- receiving ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername")
        # A unix socket's other end is a router, which tells whom it speaks for.
        self._is_local = not isinstance(name, tuple)
        self.peer = "unix" if self._is_local else str(name[0])
        self.last_active = self._loop.time()
        self._connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is not None and len(frame) - self._have > RECEIVE_BUFFER:
            return memoryview(frame)[self._have :]
        return _receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self._receiving = True
        frame = self._frame
        if frame is not None:
            self._frame_updated(frame, nbytes)
        elif self._head:
            self._head += _receive_view[:nbytes]
            pending, self._head = self._head, bytearray()
            self._split(pending, None)
        else:
            self._split_receive_buffer(nbytes)
        self._receiving = False
        if self._out and not self._flush_scheduled:
            self._flush()  # what was answered at once

    def _split_receive_buffer(self, nbytes: int) -> None:
        """The usual case: whole frames, one after the other, in the shared buffer."""
        frames = []
        at = 0
        while nbytes - at >= 4:
            (size,) = LENGTH.unpack_from(_receive_buffer, at)
            if not 8 <= size <= self._max_frame and not self._acceptable(size):
                return
            at += 4
            end = at + size
            if end > nbytes:
                self._start_frame(size, _receive_view[at:nbytes])
                at = nbytes
                break
            frames.append(_receive_buffer[at:end])
            at = end
        if at < nbytes:
            self._head += _receive_view[at:nbytes]
        # Only now: serving a request may let other connections receive into the shared buffer.
        for frame in frames:
            if self._read_paused or self._held or self._backlog or self.closing:
                self._begin(frame)
            else:
                self._serve(frame)

    def _split(self, data: bytes | bytearray, first: bytearray | None) -> None:
        frames = [] if first is None else [first]
        at, have = 0, len(data)
        while have - at >= 4:
            (size,) = LENGTH.unpack_from(data, at)
            if not self._acceptable(size):
                return
            at += 4
            end = at + size
            if end > have:
                self._start_frame(size, memoryview(data)[at:])
                at = have
                break
            frames.append(bytearray(data[at:end]))
            at = end
        if at < have:
            self._head += data[at:]
        for frame in frames:
            self._begin(frame)

    def _acceptable(self, size: int) -> bool:
        if 8 <= size <= self._max_frame:
            return True
        log.warning(
            "closing %s: a frame of %d bytes (at most %d; is it a Kafka client?)",
            self.peer,
            size,
            self._max_frame,
        )
        self.abort()
        return False

    def _start_frame(self, size: int, begun: memoryview) -> None:
        # A length is only a claim: memory is given as bytes come.
        self._wanted = size
        self._have = len(begun)
        self._frame = bytearray(min(size, max(FIRST_FRAME_MEMORY, 4 * self._have)))
        self._frame[: self._have] = begun

    def _frame_updated(self, frame: bytearray, nbytes: int) -> None:
        """More of a frame has come: in its own memory if `get_buffer` gave that."""
        have = self._have
        if len(frame) - have > RECEIVE_BUFFER:
            taken = nbytes
        else:
            taken = min(self._wanted - have, nbytes)
            if have + taken > len(frame):
                frame = self._more_memory(frame, have + taken)
            frame[have : have + taken] = _receive_view[:taken]
        self._have = have + taken
        self.last_active = self._loop.time()  # slow is not idle
        if self._have == self._wanted:
            self._frame = None
            self._split(_receive_buffer[taken:nbytes], frame)
        elif self._have == len(frame):
            self._more_memory(frame, self._have)

    def _more_memory(self, frame: bytearray, at_least: int) -> bytearray:
        larger = bytearray(min(self._wanted, max(2 * len(frame), at_least)))
        larger[: self._have] = memoryview(frame)[: self._have]
        self._frame = larger
        return larger

    def _begin(self, frame: bytearray) -> None:
        if self.closing:
            return
        if self._backlog or self._read_paused or self._held:
            self._backlog.append(frame)
            if len(self._backlog) >= MAX_BACKLOG:
                self._pause()
            return
        self._serve(frame)

    def _serve(self, frame: bytearray) -> None:
        repeat = self.repeats.find(frame)
        if repeat is not None:
            header = repeat.header_of(frame)
        else:
            try:
                header = read_request_header(frame)
            except MalformedMessage as fault:
                log.warning("closing %s: %s", self.peer, fault)
                self.abort()
                return
            if header.api_key == PEER_ADDRESS and self._is_local:
                self.peer = header.client_id or self.peer
                return
        size = len(frame)
        call = Call(self, header, size)
        self._calls.append(call)
        self._unanswered_bytes += size
        budget = self._budget
        budget.take(size)
        try:
            if repeat is None or not repeat.serve(call, frame):
                self._dispatch(call, frame)
        except Exception:
            # Not further: it may be another connection's reply that let this one go on.
            log.exception("closing %s: its request could not be served", self.peer)
            self.abort()
            return
        if (
            len(self._calls) >= MAX_UNANSWERED
            or self._unanswered_bytes > budget.per_connection
            or budget.exhausted
        ):
            self._pause()

    # --- replying ---

    def answered(self, call: Call) -> None:
        """A call has its reply: send it and those behind it that were waiting for it."""
        calls = self._calls
        if not calls or (parts := calls[0].parts) is None:
            return
        out = self._out
        freed = 0
        while parts is not None:
            freed += calls.popleft().size
            out += parts
            parts = calls[0].parts if calls else None
        self._unanswered_bytes -= freed
        self._budget.give_back(freed)
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
            if len(parts) == 1:
                transport.write(parts[0])
            else:
                transport.writelines(parts)
            if self._write_paused:
                self._count_unsent(transport.get_write_buffer_size())
        self.last_active = self._loop.time()
        if self.closing and not self._calls:
            transport.close()
        elif self._read_paused:
            self.ease()

    # --- back-pressure ---

    def _pause(self) -> None:
        transport = self._transport
        if not self._read_paused and transport is not None and not transport.is_closing():
            self._read_paused = True
            transport.pause_reading()
            if self._budget.exhausted:
                self._budget.wait(self)

    def hold(self) -> None:
        """Begin nothing more until `go_on`; reading goes on for a while, or nobody would notice
        that the client is gone."""
        self._held = True

    def go_on_soon(self) -> None:
        """Once what is answered now has gone out, if the client takes it."""
        self._loop.call_soon(self.go_on)

    def go_on(self) -> None:
        self._held = False
        if self._read_paused:
            self.ease()
        else:
            self._serve_backlog()

    def ease(self) -> None:
        """Go on reading if there is room again: first with what was received already."""
        if (
            not self._read_paused
            or self._held
            or self._write_paused
            or self._transport is None
            or len(self._calls) > MAX_UNANSWERED // 2
            or self._unanswered_bytes > self._budget.per_connection // 2
        ):
            return
        if self._budget.exhausted:
            self._budget.wait(self)
            return
        self._read_paused = False
        self._serve_backlog()
        if not self._read_paused and not self.closing:
            self._transport.resume_reading()

    def _serve_backlog(self) -> None:
        while self._backlog and not (self._read_paused or self._held or self.closing):
            self._serve(self._backlog.popleft())

    def pause_writing(self) -> None:
        self._write_paused = True
        self._pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._count_unsent(0)
        self.ease()

    def _count_unsent(self, size: int) -> None:
        self._budget.hold(size - self._unsent)
        self._unsent = size

    @property
    def budget(self) -> Budget:
        return self._budget

    # --- the end ---

    def drain(self) -> None:
        """Take no further request; close when those begun are answered."""
        self.closing = True
        if self._transport is None:
            return
        if not self._calls and not self._flush_scheduled:
            self._transport.close()
        else:
            self._pause()

    def abort(self) -> None:
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Nothing is being served; half a request may be there, whose rest does not come."""
        return not self._calls

    def close_idle(self) -> None:
        if self._write_paused or self._frame is not None:
            what = "does not read its replies" if self._write_paused else "sent half a request"
            log.warning("closing %s: it %s, and nothing more came for long", self.peer, what)
            self.abort()
        else:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
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
        self._backlog.clear()
        self._frame = None
        self._out.clear()
