"""Routers that asked for notice of something: over the connections on which they asked."""

from __future__ import annotations

from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from moldau.broker.wire.frame import private_reply


class Subscribers:
    """Of one private API, `key`."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._routers: set[Connection] = set()
        self._current: bytes | None = None

    def subscribe(self, call: Call) -> None:
        """A router gets every notice from now on, and what is kept for it at once."""
        self._routers.add(call.connection)
        call.no_reply()
        if self._current is not None:
            call.connection.push(self._current)

    def tell(self, body: bytes) -> None:
        self._push(private_reply(self._key, body))

    def keep(self, body: bytes) -> None:
        """Tell it also those who ask later; if it is not what they know already."""
        frame = private_reply(self._key, body)
        if frame != self._current:
            self._current = frame
            self._push(frame)

    def _push(self, frame: bytes) -> None:
        self._routers = {router for router in self._routers if not router.closing}
        for router in self._routers:
            router.push(frame)
