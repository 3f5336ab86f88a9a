"""The partition of a key, as Kafka's own producers choose it."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit Murmur2 of Kafka's Java client, as an unsigned number."""
    length = len(data)
    mixed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        mixed = mixed * _MULTIPLIER & _MASK ^ word
    if whole < length:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _MASK
    return mixed ^ mixed >> 15


def partition_of(key: bytes | None, offset: int, partitions: int) -> int:
    """Choose by the key; without one by the offset, so that every attempt chooses the same."""
    if key is None:
        return offset % partitions
    return (murmur2(key) & 0x7FFFFFFF) % partitions
