"""Decides when a connection is read from, and when its requests are served.

Back-pressure: a connection with too many bytes of unanswered requests, or whose client does not
read its replies, is not read from until that has eased. The worker as a whole has a budget too.
Unsent replies count against the budget: they make other clients' fetches smaller, but do not stop
them. A client that has exceeded its quota is muted: it is not read from for the throttle time.
Frames that are incomplete, or wait to be served, count as well (broker/net/frame_memory.py).
"""

from __future__ import annotations

import asyncio
import logging
import select
from abc import abstractmethod
from collections import deque

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.server.call import Call, Limiter
from moldau.broker.server.limits import Budget
from moldau.broker.server.piecewise import PiecewiseWriter
from moldau.broker.wire.framing import FrameReader

limited = LimitedLog(logging.getLogger("moldau.server"))

MAX_UNANSWERED = 512  # requests; clients pipeline five by default
MAX_BACKLOG = 8  # frames received while the connection is held,
MAX_BACKLOG_BYTES = 1 << 20  # or less if they are large
MAX_SERVED_PER_TURN = 256  # frames, before other connections get their turn
WRITE_HIGH_WATER = 1 << 20
MUTED_CHECK_S = 1.0  # how long it may take to notice that a muted client has hung up
# Reasons to serve nothing although there is room: the bits of `_held`.
HELD, MUTED, YIELDS = 1, 2, 4
HALF_SENT = "half_sent"  # why a connection was closed, as metrics name it


class FlowControl(asyncio.BufferedProtocol):
    """What a connection has received and not answered, and the reasons not to read from it."""

    __slots__ = (
        "_awaits_room",
        "_backlog",
        "_backlog_bytes",
        "_budget",
        "_calls",
        "_claims_memory",
        "_frames",
        "_held",
        "_loop",
        "_muted_timer",
        "_muted_until",
        "_pieces",
        "_read_paused",
        "_served_this_turn",
        "_transport",
        "_unanswered_bytes",
        "_unsent",
        "_write_paused",
        "closing",
        "last_active",
        "limiter",
    )

    def __init__(self, budget: Budget, max_frame: int, limiter: Limiter | None) -> None:
        self._budget = budget
        self._frames = FrameReader(max_frame, budget.frames)
        self.limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[bytearray] = deque()  # frames received, not served yet
        self._backlog_bytes = 0
        self._claims_memory = False  # of `budget.frames`
        self._awaits_room = False  # for the rest of a frame
        self._calls: deque[Call] = deque()
        self._unanswered_bytes = 0
        self._unsent = 0  # bytes of replies that the client has not read
        self._pieces: PiecewiseWriter | None = None  # of a connection over TLS
        self._write_paused = False
        self._read_paused = False
        self._held = 0
        self._muted_until = 0.0
        self._muted_timer: asyncio.TimerHandle | None = None
        self._served_this_turn = 0
        self.closing = False
        self.last_active = 0.0

    @property
    @abstractmethod
    def peer(self) -> str: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def _serve(self, frame: bytearray) -> None:
        """Serve a request now: nothing delays it."""

    def _pause(self) -> None:
        transport = self._transport
        if not self._read_paused and transport is not None and not transport.is_closing():
            self._read_paused = True
            transport.pause_reading()
            if self._budget.exhausted:
                self._budget.wait(self)

    def _yield_turn(self) -> None:
        """Give other connections a turn: a client that pipelines cheap requests could block the
        loop."""
        self._served_this_turn = 0
        self._held |= YIELDS
        self._pause()
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._held &= ~YIELDS
        self.ease(MAX_UNANSWERED - 1)

    def hold(self) -> None:
        """Serve nothing more until `resume`. Reading continues for a while, to notice a
        disconnect."""
        self._held |= HELD

    def resume_soon(self) -> None:
        """Resume after the replies that are complete now have been written."""
        self._loop.call_soon(self.resume)

    def resume(self) -> None:
        self._held &= ~HELD
        self._go_on()

    def _go_on(self) -> None:
        if self._read_paused:
            self.ease()
        else:
            self._serve_backlog()

    def mute(self, milliseconds: int) -> None:
        """Serve nothing for this long, and read at most one request: the client has exceeded its
        quota. This slows down clients that do not wait by themselves (KIP-219)."""
        if self.closing:
            return
        now = self._loop.time()
        self._muted_until = max(self._muted_until, now + milliseconds / 1000)
        if not self._held & MUTED:
            self._held |= MUTED
            self._time_mute(now)
            if self._backlog:
                self._pause()  # the end of the connection would be read, and the backlog dropped

    def _time_mute(self, now: float) -> None:
        wait = min(self._muted_until - now, MUTED_CHECK_S)
        self._muted_timer = self._loop.call_later(wait, self._check_mute)

    def _check_mute(self) -> None:
        """If the client has hung up, serve at once what it sent before: a producer that wants no
        replies (acks=0) may leave after its last batch. If the socket's buffer is full, its end is
        noticed when the mute is over."""
        self.last_active = now = self._loop.time()
        if now < self._muted_until and not _has_hung_up(self._transport):
            self._time_mute(now)
        else:
            self._end_mute()
            self._go_on()

    def _end_mute(self) -> None:
        self._held &= ~MUTED
        if self._muted_timer is not None:
            self._muted_timer.cancel()
            self._muted_timer = None

    def ease(self, most_calls: int = MAX_UNANSWERED // 2) -> None:
        """Resume reading if there is room again, after serving what was already received."""
        if (
            not self._read_paused
            or self._held
            or self._write_paused
            or self._transport is None
            or len(self._calls) > most_calls
            or self._unanswered_bytes > self._budget.per_connection // 2
        ):
            return
        if self._budget.exhausted:
            self._budget.wait(self)
            return
        self._read_paused = False
        self._serve_backlog()
        if self._read_paused or self.closing:
            return
        if self._awaits_room:
            self._read_paused = True
            return
        if self._claims_memory:
            self._budget.frames.resumed(self, self._loop.time())
        self._transport.resume_reading()

    def _serve_backlog(self) -> None:
        while self._backlog and not (self._read_paused or self._held or self.closing):
            frame = self._backlog.popleft()
            self._backlog_bytes -= len(frame)
            self._serve(frame)
        if self._claims_memory:
            self._count_memory()

    # --- memory of requests that are not served yet ---

    def _count_memory(self, *, is_new: bool = False) -> None:
        """Tell the budget how much memory is held. `is_new`: a frame has just begun."""
        reader = self._frames
        reader.has_changed = False
        if self.closing:
            return
        frames = self._budget.frames
        backlog = self._backlog_bytes
        memory = reader.memory + backlog
        if not memory:
            if self._claims_memory:
                self._claims_memory = False
                frames.release(self)
            return
        now = self._loop.time()
        self._claims_memory = True
        frames.hold(self, memory, reader.size, reader.have, now, is_new=is_new)
        if reader.is_full and not self._awaits_room and not self.closing:
            if frames.ask(self, reader.next_memory + backlog, now):
                reader.grow()
            else:
                self._awaits_room = True
                self._pause()

    def room_found(self) -> None:
        self._awaits_room = False
        self._frames.grow()
        self._count_memory()
        if self._read_paused:
            self.ease()

    def give_way(self) -> None:
        reader = self._frames
        limited.warning(
            HALF_SENT,
            "closing %s: memory for requests that have not arrived whole is short, and it has sent "
            "%d bytes of %d; if that happens to clients that behave, raise --inflight-bytes",
            self.peer,
            reader.have,
            reader.size,
        )
        if self.limiter is not None:
            self.limiter.unreadable(HALF_SENT)
        self._drop_received()
        self.abort()

    def _drop_received(self) -> None:
        """Free everything: the connection is over."""
        self._budget.frames.release(self)
        self._claims_memory = self._awaits_room = False
        self._backlog.clear()
        self._backlog_bytes = 0
        self._frames.discard()

    @property
    def is_receiving(self) -> bool:
        """Whether the client is expected to send: one that does not read its replies is not
        excused."""
        return not self._read_paused or self._write_paused

    # --- replies that the client has not read ---

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._pieces is not None:
            self._pieces.pause()
        self._pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._pieces is not None:
            self._pieces.resume()  # and perhaps it is paused again
        if self._write_paused and self._transport is not None:
            self._count_unsent(self._left_to_write(self._transport))
        else:
            self._count_unsent(0)
            self.ease()

    def _left_to_write(self, transport: asyncio.Transport) -> int:
        pieces = self._pieces
        return transport.get_write_buffer_size() if pieces is None else pieces.unsent

    def _count_unsent(self, size: int) -> None:
        self._budget.hold(size - self._unsent)
        self._unsent = size

    @property
    def paused_for(self) -> str:
        """The reason why it is not served, as metrics name it; empty if it is served."""
        if self._held & MUTED:
            return "muted"
        if self._write_paused:
            return "slow_client"
        return "inflight" if self._read_paused and not self._held else ""

    @property
    def budget(self) -> Budget:
        return self._budget


# Only Linux tells that the other side has hung up while what it sent before is unread.
_HUNG_UP = getattr(select, "POLLRDHUP", 0)


def _has_hung_up(transport: asyncio.Transport | None) -> bool:
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket.fileno(), _HUNG_UP)  # errors are always reported
    return bool(poll.poll(0))
