"""A response that varies only in its correlation id and a run of int64 fields.

Encoding a Produce response for every request costs more than appending its batch, and most of its
bytes never change. A template is built from a frame encoded the ordinary way, so that the layout is
declared in one place only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from moldau.broker.wire.frame import (
    CORRELATION_ID_AT,
    CORRELATION_ID_END,
    LENGTH_SIZE,
    RESPONSE_CORRELATION_ID_AT,
    RESPONSE_CORRELATION_ID_END,
)
from moldau.broker.wire.primitives import INT32

# Values that mark the run: no real field has them.
MARKS = (0x5A17B0C3_11223344, 0x5A17B0C3_22334455, 0x5A17B0C3_33445566)
THROTTLE_MARK = 0x5A17B0C4


class ResponseTemplate:
    __slots__ = ("_after", "_before", "_body", "_length", "_pack", "_size", "_throttle_at")

    def __init__(self, frame: bytes, fields: int = 0) -> None:
        """`frame` contains the first `fields` of MARKS, in order, side by side, and may contain
        THROTTLE_MARK after them: the throttle time, which is 0 unless `throttled` sets it."""
        self._throttle_at = at = frame.rfind(INT32.pack(THROTTLE_MARK))
        if at >= 0:
            frame = frame[:at] + bytes(INT32.size) + frame[at + INT32.size :]
        run = struct.pack(f">{fields}q", *MARKS[:fields])
        at = frame.index(run, RESPONSE_CORRELATION_ID_END)
        self._length = frame[:RESPONSE_CORRELATION_ID_AT]
        self._body = frame[RESPONSE_CORRELATION_ID_END:]
        self._size = len(frame) - LENGTH_SIZE
        self._before = frame[RESPONSE_CORRELATION_ID_END:at]
        self._after = frame[at + len(run) :]
        layout = f">ii{len(self._before)}s{fields}q{len(self._after)}s"
        self._pack: Callable[..., bytes] = struct.Struct(layout).pack

    def fill(self, correlation_id: int, *values: Any) -> bytes:
        """Return the frame with these values."""
        return self._pack(self._size, correlation_id, self._before, *values, self._after)

    def throttled(self, filled: bytes, throttle_time_ms: int) -> bytes:
        """Set the throttle time in a frame that `fill` has built."""
        frame = bytearray(filled)
        INT32.pack_into(frame, self._throttle_at, throttle_time_ms)
        return bytes(frame)

    def answer(self, request: bytes | bytearray) -> bytes:
        """Return the frame of a response without values to this request (without its length
        field)."""
        return self._length + request[CORRELATION_ID_AT:CORRELATION_ID_END] + self._body
