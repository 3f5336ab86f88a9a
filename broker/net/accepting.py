"""Accepts connections on a listening socket.

uvloop's own servers accept all waiting connections before they serve one, and stop listening when
they run out of descriptors. Here a few connections are accepted in each turn of the event loop,
those beyond the limit are closed at once, and without a free descriptor accepting pauses for a
moment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.net import descriptors

logger = logging.getLogger("moldau.connections")

ACCEPTS_PER_TURN = 64
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.5


def _ignore() -> None:
    pass


class Acceptor:
    """Accepts on one listening socket until it is closed."""

    def __init__(self, listening: socket.socket, on_refused: Callable[[], None] = _ignore) -> None:
        """`on_refused` counts connections that are closed for lack of descriptors."""
        self._listening = listening
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._log = LimitedLog(logger)
        self._retry: asyncio.TimerHandle | None = None
        # Other processes of the broker, and the supervisor's pings, may use reserved descriptors.
        self._is_local = listening.family == socket.AF_UNIX
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting."""
        if self._listening.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                if fault.errno not in NO_DESCRIPTORS:
                    raise
                self._log.warning("accept", "cannot accept connections: %s", fault.strerror)
                self._pause(RETRY_S)
                return
            if not self._is_local and descriptors.is_reserved(accepted.fileno()):
                accepted.close()
                self._log.warning(
                    "descriptors",
                    "connections are refused: the limit of open files is reached; raise it "
                    "(ulimit -n, LimitNOFILE), or lower max.connections",
                )
                self._on_refused()
                continue
            accepted.setblocking(False)
            self._accepted(accepted, address)

    @abstractmethod
    def _accepted(self, accepted: socket.socket, address: Any) -> None:
        """A connection was accepted."""

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._retry = self._loop.call_later(seconds, self._accept_again)

    def _accept_again(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listening.fileno(), self._accept)


class PlainServer(Acceptor):
    """Serves without TLS, over TCP or a unix socket."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
        on_refused: Callable[[], None] = _ignore,
    ) -> None:
        self._protocol = protocol
        self._connecting: set[asyncio.Task[None]] = set()
        super().__init__(listening, on_refused)

    def _accepted(self, accepted: socket.socket, address: Any) -> None:
        task = self._loop.create_task(self._connect(accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:
            accepted.close()  # it hung up
