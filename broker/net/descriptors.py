"""The file descriptors that a process may open, and how many of them client connections may take.

Some are reserved for everything else: connections to the store and to other processes,
certificates, and the supervisor's pings; a process that does not answer those is killed.
"""

from __future__ import annotations

import contextlib
import resource

MOST_RESERVED = 512
LEAST_RESERVED = 64


def raise_limit() -> None:
    """Raise the limit of open files as far as allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft >= 0 else 1 << 30


def reserved() -> int:
    limit = _limit()
    return min(max(limit // 4, LEAST_RESERVED), MOST_RESERVED, limit // 2)


def for_clients(each: int = 1) -> int:
    """The number of clients, if each takes this many descriptors."""
    return max((_limit() - reserved()) // each, 1)


def is_reserved(descriptor: int) -> bool:
    """Whether a new descriptor is a reserved one: the kernel returns the lowest free number, so all
    below it are in use."""
    return descriptor >= _limit() - reserved()


def is_nearly_last(descriptor: int) -> bool:
    """Whether half of the reserved descriptors are used up."""
    return descriptor >= _limit() - reserved() // 2
