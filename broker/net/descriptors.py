"""How many file descriptors a process may open, and how many of them connections may take.

Some are kept aside for everything else a process opens: connections to the store and to other
processes, certificates, and the supervisor's pings, without whose answers it is killed.
"""

from __future__ import annotations

import contextlib
import resource

MOST_RESERVED = 512
LEAST_RESERVED = 64


def raise_limit() -> None:
    """As far as allowed."""
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
    """How many clients there may be, if each of them takes so many descriptors."""
    return max((_limit() - reserved()) // each, 1)


def is_reserved(descriptor: int) -> bool:
    """Whether a new descriptor is one of those kept aside: the kernel gives out the lowest that is
    free, so all below it are in use."""
    return descriptor >= _limit() - reserved()


def is_nearly_last(descriptor: int) -> bool:
    """Whether only half of those kept aside is left."""
    return descriptor >= _limit() - reserved() // 2
