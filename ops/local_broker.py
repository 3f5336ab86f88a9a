"""A broker on this machine, asked over its unix sockets: as its operator, without a password.

Whoever can enter the runtime directory runs the broker. Workers are asked at sockets of their own;
requests for any of them, and those to a cluster that advertises its router only, go to a router.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from pathlib import Path

from moldau.ops.client import LocalSockets, Node
from moldau.ops.serve.runtime import router_socket, runtime_dir, worker_socket

MAX_ROUTERS = 64
CONNECT_PATIENCE_S = 2.0


def find_local_broker(port: int, routers_at: Collection[int] = ()) -> LocalSockets | None:
    """The sockets of this user's broker with this bootstrap port; None: there is none.

    `routers_at`: the advertised ports of its routers, where they are known to be others.
    """
    directory = runtime_dir(os.environ)
    for index in range(MAX_ROUTERS):
        path = router_socket(directory, port, index)
        if not path.exists():
            return None
        if _accepts(path):
            return _sockets(directory, port, str(path), {port, *routers_at})
    return None


def _sockets(directory: Path, port: int, router: str, routers_at: set[int]) -> LocalSockets:
    def socket_of(node: Node) -> str:
        worker = worker_socket(directory, port, max(node.node_id, 0))
        is_router = node.node_id < 0 or node.port in routers_at
        return router if is_router or not worker.exists() else str(worker)

    return socket_of


def _accepts(path: Path) -> bool:
    """A broker that was killed leaves its sockets behind."""
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CONNECT_PATIENCE_S)
        try:
            trial.connect(str(path))
        except OSError:
            return False
    return True
