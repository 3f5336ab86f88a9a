"""A transport with reasons to pause reading, and a close after which written bytes still reach a
peer that reads.

It is used at both ends: for the client's connection and for its connections to the workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import cast

from moldau.broker.wire.batch import Buffer

WRITE_HIGH_WATER = 256 * 1024
LINGER_S = 5.0
# Larger pieces of received bytes are passed on as views instead of copies.
VIEW_FROM = 8192


class Pause(Enum):
    """The reasons not to read from a connection."""

    REPLIES_OUT_OF_TURN = "a worker's replies wait for those of others"
    CLIENT_IS_SLOW = "the client does not read its replies"
    WORKER_IS_BLOCKED = "a worker's socket is connecting or full"
    REQUESTS_WAIT = "the client's next request cannot be forwarded yet"
    MEMORY_IS_SHORT = "there is no room for more of the client's next request"


class PausableTransport:
    """A transport that is not connected until `attach`: earlier writes are kept in `unsent`."""

    __slots__ = ("_reasons", "_transport", "is_reading", "is_write_paused", "unsent", "write")

    def __init__(self) -> None:
        self.unsent: list[Buffer] = []
        # This becomes the transport's own method, which saves a call for each reply and request.
        self.write: Callable[[Buffer], None] = self.unsent.append
        self.is_write_paused = False
        self.is_reading = True
        self._transport: asyncio.Transport | None = None
        self._reasons: set[Pause] = set()

    def attach(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.write = self._transport.write
        if not self.is_reading:
            self._transport.pause_reading()

    def detach(self) -> asyncio.Transport | None:
        """The connection is over: drop what is written from now on."""
        transport, self._transport = self._transport, None
        self.write = _discard
        self.unsent.clear()
        return transport

    @property
    def unsent_bytes(self) -> int:
        if self._transport is None:
            return sum(map(len, self.unsent))
        return self._transport.get_write_buffer_size()

    # --- reading ---

    def pause(self, reason: Pause) -> None:
        self._reasons.add(reason)
        if self.is_reading:
            self.is_reading = False
            if self._transport is not None:
                self._transport.pause_reading()

    def resume(self, reason: Pause) -> None:
        self._reasons.discard(reason)
        if not (self._reasons or self.is_reading):
            self.is_reading = True
            if self._transport is not None:
                self._transport.resume_reading()

    # --- closing ---

    def close(self) -> None:
        """Hang up. Bytes that are already written still reach a peer that reads."""
        transport = self.detach()
        if transport is None:
            return
        if self.is_write_paused:
            transport.abort()
            return
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        transport.close()

    def abort(self) -> None:
        transport = self.detach()
        if transport is not None:
            transport.abort()


def piece_of(data: bytes, start: int, end: int) -> Buffer:
    """Return a piece of received bytes, to be written as it is."""
    size = end - start
    if size == len(data):
        return data
    if size < VIEW_FROM:
        return data[start:end]
    return memoryview(data)[start:end]


def _discard(data: Buffer) -> None:
    pass
