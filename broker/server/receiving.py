"""The memory of requests that a connection has received and not served yet.

Complete frames wait in the backlog; the last frame may be incomplete. Both count against the
worker's budget. If a frame needs more memory than there is, the connection waits and is not read
from. A connection whose client does not keep pace while others wait is closed.
"""

from __future__ import annotations

import logging
from abc import abstractmethod

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.server.budget import Budget
from moldau.broker.server.call import Limiter
from moldau.broker.server.flow_control import FlowControl
from moldau.broker.wire.frame_reader import FrameReader

limited = LimitedLog(logging.getLogger("moldau.server"))

HALF_SENT = "half_sent"  # why a connection was closed, as metrics name it


class Receiving(FlowControl):
    __slots__ = ("_frames", "limiter")

    def __init__(self, budget: Budget, max_frame: int, limiter: Limiter | None) -> None:
        super().__init__(budget)
        self._frames = FrameReader(max_frame, budget.frames)
        self.limiter = limiter

    @property
    @abstractmethod
    def peer(self) -> str: ...

    @abstractmethod
    def abort(self) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer

    def _count_memory(self, *, is_new: bool = False) -> None:
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
