"""Slots: which worker coordinates a group, as Kafka maps groups to `__consumer_offsets`.

`slot = abs(String.hashCode(group id)) % 50`, `owner = slot % workers`. Pure, and the same in every
process: Python's own `hash()` is salted and would send each process somewhere else.
"""

from __future__ import annotations

from functools import lru_cache

SLOTS = 50


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in signed 32-bit arithmetic."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=8192)  # the hash is a loop over characters, and ids come again and again
def slot_of(name: str) -> int:
    """The slot of a group id or transactional id. Kafka's abs: the smallest integer becomes 0."""
    value = java_string_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % SLOTS


def owner_of(name: str, workers: int) -> int:
    """The worker that coordinates it."""
    return slot_of(name) % workers


def slots_of(worker: int, workers: int) -> range:
    """The slots a worker owns."""
    return range(worker, SLOTS, workers)
