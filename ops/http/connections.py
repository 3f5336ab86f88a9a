"""HTTP connections with limits: how long a request may take to arrive, and how many may be open.

uvicorn closes connections that are idle after a request, and waits forever for the rest of one.
Here a request has a deadline for its headers and another for its body, an answer that is not read
is given up, and there is room for a new connection by closing the one that has waited longest for
a request: whoever leaves many open keeps no one from asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0
BODY_S = 30.0
UNREAD_S = 60.0  # for an answer that the client does not take
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_ADDRESS = 256


class Waiting(Protocol):
    """A connection, as far as `Room` needs to know it."""

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""

    def abort(self) -> None: ...


class Room:
    """How many connections are open, by address."""

    def __init__(
        self, most: int = MAX_CONNECTIONS, most_of_address: int = MAX_CONNECTIONS_OF_ADDRESS
    ) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._open: dict[Waiting, str] = {}  # in the order in which they came
        self._by_address: dict[str, dict[Waiting, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Waiting, address: str) -> bool:
        """False: there is no room, as requests are being answered on all the others."""
        own = self._by_address.get(address, {})
        if len(own) >= self._most_of_address and not self._close_one(own):
            return False
        if len(self._open) >= self._most and not self._close_one(self._open):
            return False
        self._open[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return True

    def leave(self, connection: Waiting) -> None:
        address = self._open.pop(connection, None)
        if address is None:
            return
        own = self._by_address[address]
        del own[connection]
        if not own:
            del self._by_address[address]

    def _close_one(self, connections: Iterable[Waiting]) -> bool:
        oldest = next((each for each in connections if each.is_waiting), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.abort()
        return True


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines. One timer at a time: for headers, a body or an answer."""

    room = Room()  # of the process, which has one server
    headers_s, body_s, unread_s = HEADERS_S, BODY_S, UNREAD_S

    _awaited: tuple[str, object] | None = None  # the part of a request that has a deadline
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.room.enter(self, self.client[0] if self.client is not None else ""):
            self._watch()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.room.leave(self)
        self._expect(None, 0)
        self._stop_unread()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_unread()  # it is closed once everything is sent

    def _watch(self) -> None:
        state = self.conn.their_state
        if self.transport.is_closing():
            self._expect(None, 0)
        elif state is h11.SEND_BODY:
            self._expect(("body", self.cycle), self.body_s)
        elif state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._expect(("headers", self.cycle), self.headers_s)
        else:
            self._expect(None, 0)

    def _expect(self, awaited: tuple[str, object] | None, seconds: float) -> None:
        """Bytes that come slowly do not put off the deadline."""
        if awaited == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited = awaited
        self._deadline = None if awaited is None else self.loop.call_later(seconds, self.abort)

    def _start_unread(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_s, self.abort)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
