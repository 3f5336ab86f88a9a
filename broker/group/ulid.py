"""ULIDs: 48 bits of milliseconds and 80 random bits in 26 characters that sort by time."""

from __future__ import annotations

import os

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
RANDOM_BYTES = 10
MAX_MS = (1 << 48) - 1
IDENTITY_PREFIX = "cgp_"


def ulid(now_ms: int, randomness: bytes) -> str:
    """Build the ULID of a point in time and ten random bytes."""
    if not 0 <= now_ms <= MAX_MS:
        raise ValueError(f"{now_ms} ms do not fit into the 48 bits of a ULID")
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"a ULID takes {RANDOM_BYTES} random bytes, not {len(randomness)}")
    value = now_ms << 80 | int.from_bytes(randomness, "big")
    return "".join(CROCKFORD[value >> shift & 31] for shift in range(5 * LENGTH - 5, -1, -5))


def new_identity(now_ms: int) -> str:
    """Return the identity of a new consumer group."""
    return IDENTITY_PREFIX + ulid(now_ms, os.urandom(RANDOM_BYTES))
