"""Writing to a TLS transport in pieces.

uvloop encrypts everything it is given at once, and passes it to the socket's own transport, whose
backlog it does not count: for a client that does not read, each reply would be held twice, once as
a copy that no budget counts. Data that waits here is not encrypted yet, shares its memory with the
tail cache, and counts as unsent.
"""

from __future__ import annotations

import asyncio
from collections import deque

from moldau.broker.wire.batch import Buffer

PIECE = 256 * 1024


class PiecewiseWriter:
    """Between a connection and its transport. The connection passes on when to pause and resume."""

    __slots__ = ("_is_paused", "_size", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting: deque[Buffer] = deque()
        self._size = 0
        self._is_paused = False

    def __bool__(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._waiting)

    @property
    def unsent(self) -> int:
        """Bytes that are known to be unsent. The socket's transport may have up to a piece more."""
        return self._size + self._transport.get_write_buffer_size()

    def write(self, parts: list[Buffer]) -> None:
        self._waiting.extend(parts)
        self._size += sum(map(len, parts))
        self._go_on()

    def pause(self) -> None:
        """Stop: enough is encrypted. Called while a piece is written."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._go_on()

    def discard(self) -> None:
        self._waiting.clear()
        self._size = 0

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and not self._is_paused:
            piece: list[Buffer] = []
            room = PIECE
            while waiting and room > 0:
                part = waiting.popleft()
                if len(part) > room:
                    rest = memoryview(part)
                    waiting.appendleft(rest[room:])
                    part = rest[:room]
                piece.append(part)
                room -= len(part)
            self._size -= PIECE - room
            self._transport.writelines(piece)
