"""The numbers in records: zigzag varints of up to ten bytes, and Java's 64 bits.

Loops over records handle the short ones inline (see walking.py); only long or rare ones come here.
"""

from __future__ import annotations

from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.primitives import TABLE_SIZE, UVARINTS, uvarint

MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1

_MAX_VARLONG_SHIFT = 63


def varint(buf: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of up to ten bytes and the position after it."""
    byte = buf[at]
    at += 1
    if byte > 0x7F:
        byte, at = long_varint(buf, at, byte)
    return byte >> 1 ^ -(byte & 1), at


def long_varint(buf: bytes, at: int, byte: int) -> tuple[int, int]:
    """Return the rest of a varint after its first byte, before zigzag decoding."""
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        if shift > _MAX_VARLONG_SHIFT:
            raise CorruptBatch("a varint longer than ten bytes")
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def zigzag(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    return UVARINTS[value] if value < TABLE_SIZE else uvarint(value)


def wrap(value: int) -> int:
    """Wrap into 64 bits, as Java's arithmetic does: deltas need not fit when timestamps do."""
    return (value - MIN_INT64 & (1 << 64) - 1) + MIN_INT64


NULL_LENGTH = zigzag(-1)
