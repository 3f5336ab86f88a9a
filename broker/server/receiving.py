"""Bytes from a client cut into frames.

Bytes are received into one buffer that all connections of the worker share (it is only ever in
use within one call); a frame is copied out of it once, or, when it is larger than the buffer, the
rest is received straight into the frame's own memory.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from broker.wire.frame import LENGTH

RECEIVE_BUFFER = 256 * 1024
FIRST_FRAME_MEMORY = 1 << 16
LEAST_FRAME = 8  # API key, version and correlation id

_receive_buffer = bytearray(RECEIVE_BUFFER)
_receive_view = memoryview(_receive_buffer)


class Receiving(asyncio.BufferedProtocol):
    """The receiving half of a connection; see the module."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._head = bytearray()  # of a frame whose length has not come whole yet
        self._frame: bytearray | None = None  # one that is being received
        self._have = 0
        self._wanted = 0
        self._receiving = False  # what is answered meanwhile goes out when that is over

    # --- what is done with frames ---

    @abstractmethod
    def _begin(self, frame: bytearray) -> None:
        """A frame, without its length."""

    @abstractmethod
    def _more_came(self) -> None:
        """Of a frame that takes a while."""

    @abstractmethod
    def _refuse_size(self, size: int) -> None:
        """A length that no frame can have: nothing that follows can be made out."""

    @abstractmethod
    def _received(self) -> None:
        """All that came was passed on."""

    # --- from uvloop ---

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
        elif (
            LEAST_FRAME + 4 <= nbytes <= self._max_frame + 4
            and LENGTH.unpack_from(_receive_buffer)[0] == nbytes - 4
        ):
            self._begin(_receive_buffer[4:nbytes])  # the usual case: one whole frame
        else:
            self._split_receive_buffer(nbytes)
        self._receiving = False
        self._received()

    # --- cutting ---

    def _split_receive_buffer(self, nbytes: int) -> None:
        """Whole frames, one after the other, in the shared buffer, and perhaps part of one."""
        frames = []
        at = 0
        while nbytes - at >= 4:
            (size,) = LENGTH.unpack_from(_receive_buffer, at)
            if not LEAST_FRAME <= size <= self._max_frame:
                self._refuse_size(size)
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
            self._begin(frame)

    def _split(self, data: bytes | bytearray, first: bytearray | None) -> None:
        frames = [] if first is None else [first]
        at, have = 0, len(data)
        while have - at >= 4:
            (size,) = LENGTH.unpack_from(data, at)
            if not LEAST_FRAME <= size <= self._max_frame:
                self._refuse_size(size)
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

    # --- a frame larger than what came at once ---

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
        self._more_came()
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
