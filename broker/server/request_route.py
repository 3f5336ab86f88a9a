"""Requests that a connection repeats: found again by their bytes, so that they are not decoded.

A producer or a member of a group sends the same request over and over, but for its correlation id
and what stands at the end of it. Whoever served the first one may offer to serve those that begin
like it (`Repeat`); the connection keeps the offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.wire.frame import RequestHeader

if TYPE_CHECKING:
    from broker.server.connection import Call

AFTER_CORRELATION_ID = 8
MOST = 64  # kinds of requests remembered: clients can send anything
MOST_LENGTHS = 4


class Repeat(Protocol):
    """Serves requests that begin with the same bytes as one before, but for the correlation id."""

    kind: bytes  # API key and version
    head: bytes  # what follows the correlation id

    def describes(self, frame: bytearray) -> bool: ...

    def answer(self, frame: bytearray) -> bytes | None:
        """The whole reply, when it can be given at once and without a `Call`; else None."""
        ...

    def header_of(self, frame: bytearray) -> RequestHeader: ...

    def serve(self, call: Call, frame: bytearray) -> bool:
        """False when the rest is not as expected: then it has to be decoded."""
        ...


class Repeats:
    """What one connection is known to repeat."""

    __slots__ = ("_by_head", "_ends", "_last")

    def __init__(self) -> None:
        self._last: Repeat | None = None
        self._by_head: dict[bytes, Repeat] = {}
        self._ends: list[int] = []  # where in a frame their heads end

    def find(self, frame: bytearray) -> Repeat | None:
        last = self._last
        if (
            last is not None
            and frame.startswith(last.head, AFTER_CORRELATION_ID)
            and frame.startswith(last.kind)
        ):
            return last
        for end in self._ends:
            repeat = self._by_head.get(bytes(frame[AFTER_CORRELATION_ID:end]))
            if repeat is not None and frame.startswith(repeat.kind):
                self._last = repeat
                return repeat
        return None

    def remember(self, repeat: Repeat) -> None:
        """Let requests that begin like this be served by it."""
        head, end = repeat.head, len(repeat.head) + AFTER_CORRELATION_ID
        if head not in self._by_head and len(self._by_head) >= MOST:
            return
        if end not in self._ends:
            if len(self._ends) >= MOST_LENGTHS:
                return
            self._ends.append(end)
        self._by_head[head] = self._last = repeat
