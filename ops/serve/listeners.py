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

from ops.serve.ports import bind_port


class Listeners:
    """By process: its port on every address of the host, and its unix socket."""

    def __init__(self) -> None:
        self.workers: list[list[int]] = []
        self.routers: list[list[int]] = []
        self._sockets: list[socket.socket] = []

    @classmethod
    def bind(
        cls, host: str, ports: Sequence[int], workers: Sequence[Path], routers: Sequence[Path]
    ) -> Self:
        """Bind the ports, the bootstrap port first, and the unix sockets. Raises ConfigError."""
        listeners = cls()
        # The kernel spreads connections over the routers that share the bootstrap port.
        shared = len(routers) > 1
        listeners.routers = [listeners._bind(host, ports[0], path, shared) for path in routers]
        listeners.workers = [
            listeners._bind(host, port, path, False)
            for port, path in zip(ports[1:], workers, strict=True)
        ]
        return listeners

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(each.fileno() for each in self._sockets)

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _bind(self, host: str, port: int, path: Path, shared: bool) -> list[int]:
        sockets = [*bind_port(host, port, shared=shared), bind_unix(path)]
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
