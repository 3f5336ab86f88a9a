"""Requests that repeat are recognised by their bytes, and answered from a template.

A client sends the same request over and over, except for its correlation id and one variable part:
a Heartbeat's generation, a Produce's batch. A `RequestPattern` describes such requests, and a
`RequestCache` finds the pattern that matches one. Workers store with it how a request is served,
routers where it goes.

Encoding a Produce response for every request costs more than appending its batch, and most of its
bytes never change. A `ResponseTemplate` is built from a frame encoded the ordinary way, so that the
layout is declared in one place only. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from moldau.broker.wire.frame import (
    API_SIZE,
    CORRELATION_ID_AT,
    CORRELATION_ID_END,
    LENGTH_SIZE,
    RESPONSE_CORRELATION_ID_AT,
    RESPONSE_CORRELATION_ID_END,
)
from moldau.broker.wire.primitives import INT32

# The bounds of a cache: a client can send anything. librdkafka sends a Produce per partition.
MAX_PATTERNS = 256
MAX_PREFIX_LENGTHS = 16  # each costs a look-up when nothing is found
MAX_PREFIX = 512

P = TypeVar("P", bound="RequestPattern")


class RequestPattern:
    """Matches requests of one API and version by the bytes after the correlation id (`prefix`) and
    by those at the end (`suffix`), for which `data` has to end with the frame."""

    __slots__ = ("_min_size", "api", "prefix", "suffix")

    def __init__(self, api: bytes = b"", prefix: bytes = b"", suffix: bytes = b"") -> None:
        self.set_bytes(api, prefix, suffix)

    def set_bytes(self, api: bytes, prefix: bytes, suffix: bytes = b"") -> None:
        self.api = api  # key and version
        self.prefix = prefix
        self.suffix = suffix
        self._min_size = CORRELATION_ID_END + len(prefix) + len(suffix)

    def matches(self, data: bytes | bytearray, at: int, size: int) -> bool:
        """Check whether the request frame (without its length field) of `size` bytes at `at`
        matches."""
        return (
            size >= self._min_size
            and data.startswith(self.prefix, at + CORRELATION_ID_END)
            and data.startswith(self.api, at)
            and (not self.suffix or data.endswith(self.suffix))
        )


class RequestCache(Generic[P]):
    """The patterns of one connection."""

    __slots__ = ("_by_start", "_last", "_prefix_ends")

    def __init__(self) -> None:
        self._last: P | None = None  # looked at first: most connections send one kind of request
        self._by_start: dict[bytes, P] = {}  # API and prefix
        self._prefix_ends: list[int] = []  # where in a frame prefixes end

    def __len__(self) -> int:
        return len(self._by_start)

    def find(self, data: bytes | bytearray, at: int, size: int) -> P | None:
        """Return the pattern that the request frame of `size` bytes at `at` matches."""
        last = self._last
        if last is not None and last.matches(data, at, size):
            return last
        if not self._prefix_ends:
            return None
        api, prefix_at = bytes(data[at : at + API_SIZE]), at + CORRELATION_ID_END
        for end in self._prefix_ends:
            found = self._by_start.get(api + data[prefix_at : at + end])
            if found is not None and found.matches(data, at, size):
                self._last = found
                return found
        return None

    def add(self, pattern: P) -> None:
        """Add a pattern, or replace one with the same API and prefix.

        A full cache keeps its patterns, and finds the new one until it finds another. If it dropped
        old ones, it would find none of those that a client uses in turn.
        """
        start, end = pattern.api + pattern.prefix, CORRELATION_ID_END + len(pattern.prefix)
        if len(pattern.prefix) > MAX_PREFIX:
            return
        self._last = pattern
        if len(self._by_start) >= MAX_PATTERNS and start not in self._by_start:
            return
        if end not in self._prefix_ends:
            if len(self._prefix_ends) >= MAX_PREFIX_LENGTHS:
                return
            self._prefix_ends.append(end)
        self._by_start[start] = pattern

    def clear(self) -> None:
        self._last = None
        self._by_start.clear()
        self._prefix_ends.clear()


# Values that mark the run: no real field has them.
MARKS = (0x5A17B0C3_11223344, 0x5A17B0C3_22334455, 0x5A17B0C3_33445566)
THROTTLE_MARK = 0x5A17B0C4


class ResponseTemplate:
    """A response that varies only in its correlation id and a run of int64 fields."""

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
