"""Free ports for a broker: a router and its workers need several in a row."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 10_000, 32_000  # below those that the system hands out


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row. Another process may take one before it is used."""
    for _ in range(1000):
        first = random.randrange(FIRST, LAST)
        if all(map(is_port_free, range(first, first + count))):
            return first
    raise OSError(f"found no {count} free ports in a row from {FIRST} to {LAST}")


def is_port_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
