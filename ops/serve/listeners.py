"""The sockets that workers and routers serve on: bound here, passed on as open descriptors.

The supervisor keeps them open, so that they outlive the process that serves on them: a connection
made while it is restarted is not refused, but waits for its successor. They begin to listen when
the first process serves, so that until then a broker that is starting refuses connections.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from moldau.broker.settings.processes import Listener, ProcessSockets
from moldau.ops.serve.ports import bind_port


class Listeners:
    """The unix socket of each process, and its ports: one of each listener on every address."""

    def __init__(self) -> None:
        self.workers: list[ProcessSockets] = []
        self.routers: list[ProcessSockets] = []
        self._sockets: list[socket.socket] = []

    @classmethod
    def bind(
        cls, listeners: Sequence[Listener], workers: Sequence[Path], routers: Sequence[Path]
    ) -> Self:
        """Bind the ports and the unix sockets. Raises ConfigError."""
        bound = cls()
        # The kernel spreads connections over the routers that share a bootstrap port.
        shared = len(routers) > 1
        bound.routers = [bound._bind(listeners, 0, path, shared) for path in routers]
        bound.workers = [
            bound._bind(listeners, 1 + index, path, False) for index, path in enumerate(workers)
        ]
        return bound

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(each.fileno() for each in self._sockets)

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _bind(
        self, listeners: Sequence[Listener], place: int, path: Path, shared: bool
    ) -> ProcessSockets:
        """The sockets of the process that has the port at `place` of each block."""
        (unix,) = self._keep([bind_unix(path)])
        by_listener = [
            self._keep(bind_port(each.host, each.port + place, shared=shared)) for each in listeners
        ]
        return ProcessSockets(unix, by_listener)

    def _keep(self, sockets: list[socket.socket]) -> list[int]:
        self._sockets += sockets
        return [each.fileno() for each in sockets]


def bind_unix(path: Path) -> socket.socket:
    """A unix socket for this user only, in place of one that an earlier process left behind."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o077)
    try:
        bound.bind(str(path))
    finally:
        os.umask(mask)
    return bound
