"""Frames of a byte stream: cut out of what is received, joined for a write. No I/O.

Two readers share the check of a frame's size:

- `FrameReader` collects whole frames: the worker. It names the memory to receive into. That is one
  buffer shared by all readers of the process (only in use within one call), out of which a frame is
  copied once. When more than the buffer holds is missing of a frame, or its memory is not complete,
  the rest is received straight into the frame's own memory. That memory follows the bytes that have
  arrived, not the announced length: when it is full, the caller decides when it may grow.
- `FrameTracker` only tells where frames begin and end, in bytes that are passed on in the pieces
  in which they come: the router.
"""

from __future__ import annotations

from typing import Protocol

from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE

SHARED_BUFFER = 256 * 1024
# Enough for a batch of 16 KB, which producers send by default, and its request: a frame that has
# all of its memory is received together with what follows it.
FIRST_FRAME_MEMORY = 1 << 15
FIRST_GROWTH = 5  # a full buffer is enough for a batch of 1 MB and its request
MIN_REQUEST = 8  # API key, version and correlation id
MIN_RESPONSE = 4  # correlation id
MAX_INT32 = (1 << 31) - 1

_length_at = LENGTH.unpack_from
_shared = bytearray(SHARED_BUFFER)
_shared_view = memoryview(_shared)


# The beginnings of other protocols, which look like a length to a Kafka server.
TLS_HANDSHAKE = b"\x16\x03"
HTTP_METHODS = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN"})


class InvalidFrameSize(ValueError):
    """No frame can have this length: nothing that follows can be read."""

    def __init__(self, size: int, most: int) -> None:
        head = (size & 0xFFFFFFFF).to_bytes(4)
        self.reason = "not_kafka"  # the name in the metrics
        if head.startswith(TLS_HANDSHAKE):
            self.kind = "a TLS client on a plaintext port"
        elif head in HTTP_METHODS:
            self.kind = "an HTTP client"
        else:
            self.kind, self.reason = "is it a Kafka client?", "frame_size"
        super().__init__(f"a frame of {size} bytes (at most {most}; {self.kind})")


def frame_size(data: bytes | bytearray, at: int, least: int, most: int) -> int:
    """Return the size, without its length field, of the frame that begins at `at`."""
    size: int = _length_at(data, at)[0]
    if not least <= size <= most:
        raise InvalidFrameSize(size, most)
    return size


class Memory(Protocol):
    @property
    def is_short(self) -> bool:
        """True if a frame that begins gets no more memory than its bytes take."""


class Plenty:
    is_short = False


class FrameReader:
    """Collects whole request frames, without their length fields."""

    __slots__ = (
        "_frame",
        "_head",
        "_is_cut",
        "_max_size",
        "_memory",
        "_min_size",
        "buffer",
        "has_changed",
        "have",
        "size",
    )

    def __init__(self, max_size: int, memory: Memory | None = None) -> None:
        self._memory = memory or Plenty()
        self._min_size = MIN_REQUEST
        self._max_size = max_size
        self._is_cut = False  # part of a frame has been received
        self._head = bytearray()  # part of a length field
        self._frame: bytearray | None = None  # a frame of which a part has been received:
        self.have = 0  # so much
        self.size = 0  # of so many bytes
        self.has_changed = False  # bytes held for an unfinished frame; the caller resets it
        self.buffer = _shared_view  # where to receive the next bytes

    def limit(self, min_size: int, max_size: int) -> None:
        """Limit frames to these sizes from now on."""
        self._min_size, self._max_size = min_size, max_size

    @property
    def is_inside_frame(self) -> bool:
        return self._frame is not None

    @property
    def memory(self) -> int:
        """The bytes that the unfinished frame takes."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def is_full(self) -> bool:
        """True if nothing can be received before the unfinished frame gets more memory (`grow`)."""
        return not self.buffer

    @property
    def next_memory(self) -> int:
        """The size of the memory after that."""
        return min(self.size, max(FIRST_FRAME_MEMORY, 2 * self.memory))

    def received(self, nbytes: int) -> list[bytearray]:
        """Return the frames completed by `nbytes` received into `buffer`. Raises
        InvalidFrameSize."""
        if not self._is_cut:
            size = nbytes - LENGTH_SIZE
            if _length_at(_shared)[0] == size and self._min_size <= size <= self._max_size:
                return [_shared[LENGTH_SIZE:nbytes]]  # the usual case: one whole frame
            return self._cut(_shared, 0, nbytes, [])
        if self._frame is not None:
            return self._continue_frame(self._frame, nbytes)
        self._is_cut = False
        pending, self._head = self._head, bytearray()
        pending += _shared_view[:nbytes]
        return self._cut(pending, 0, len(pending), [])

    def discard(self) -> None:
        """Free the memory of a frame whose rest will not arrive."""
        self._frame = None
        self._is_cut = False
        self.have = self.size = 0
        self.buffer = _shared_view

    def _cut(self, data: bytearray, at: int, end: int, frames: list[bytearray]) -> list[bytearray]:
        """Add the frames in data[at:end] to `frames`, and keep the bytes of an incomplete last
        one."""
        while end - at >= LENGTH_SIZE:
            size = frame_size(data, at, self._min_size, self._max_size)
            at += LENGTH_SIZE
            if at + size > end:
                self._start_frame(size, memoryview(data)[at:end])
                return frames
            frames.append(data[at : at + size])
            at += size
        if at < end:
            self._head += memoryview(data)[at:end]
            self._is_cut = True
        return frames

    # --- a frame larger than what has been received at once ---

    def _start_frame(self, size: int, begun: memoryview) -> None:
        have = len(begun)
        if self._memory.is_short:
            frame = bytearray(begun)
        else:
            frame = bytearray(min(size, max(FIRST_FRAME_MEMORY, FIRST_GROWTH * have)))
            frame[:have] = begun
        self.size = size
        self.have = have
        self.has_changed = True
        self._set_frame(frame)

    def _continue_frame(self, frame: bytearray, nbytes: int) -> list[bytearray]:
        self.has_changed = True
        have, size = self.have, self.size
        if self.buffer is _shared_view:
            taken = min(size - have, nbytes)
            frame[have : have + taken] = _shared_view[:taken]
        else:
            taken = nbytes  # in the frame's own memory
        self.have = have = have + taken
        if have == size:
            self.discard()
            return self._cut(_shared, taken, nbytes, [frame])
        self._set_frame(frame)
        return []

    def grow(self) -> None:
        """Give more memory to an unfinished frame whose memory is full."""
        if self._frame is not None:
            larger = bytearray(self.next_memory)
            larger[: self.have] = memoryview(self._frame)[: self.have]
            self._set_frame(larger)

    def _set_frame(self, frame: bytearray) -> None:
        self._frame = frame
        self._is_cut = True
        have, memory = self.have, len(frame)
        is_whole = memory == self.size
        if is_whole and memory - have <= SHARED_BUFFER:
            self.buffer = _shared_view  # with it, what follows the frame can be received
        else:
            self.buffer = memoryview(frame)[have:]


class FrameTracker:
    """Finds where frames begin and end in bytes that are passed on in pieces."""

    __slots__ = ("_least", "_most", "left", "size")

    def __init__(self, least: int, most: int = MAX_INT32) -> None:
        self._least = least
        self._most = most
        self.size = 0  # of the current frame, with its length field
        self.left = 0  # bytes of the current frame that have not arrived yet

    def size_at(self, data: bytes | bytearray, at: int) -> int | None:
        """Return the size of the frame that begins at `at`, without its length field; None if the
        length field is incomplete. Raises InvalidFrameSize."""
        if len(data) - at < LENGTH_SIZE:
            return None
        return frame_size(data, at, self._least, self._most)

    def enter(self, at: int, size: int, have: int) -> int:
        """Step over the frame that begins at `at`, of which data[:have] has arrived. Returns the
        position after the arrived bytes."""
        end = at + LENGTH_SIZE + size
        if end <= have:
            return end
        self.size = LENGTH_SIZE + size
        self.left = end - have
        return have

    def resume(self, have: int) -> int:
        """Return how many of `have` further bytes still belong to the current frame."""
        taken = min(self.left, have)
        self.left -= taken
        return taken


JOIN_BELOW = 8192  # smaller parts are joined: copying them is cheaper than an iovec entry


def coalesce(parts: list[Buffer]) -> list[Buffer]:
    """Join runs of small parts, leave large ones as they are."""
    if len(parts) == 1:
        return parts
    out: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            run.append(part)
            continue
        if run:
            out.append(b"".join(run))
            run = []
        out.append(part)
    if run:
        out.append(b"".join(run))
    return out
