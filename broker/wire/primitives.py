"""Variable-length integers, and helpers that generated codecs call in rare cases.

Fixed-size fields are read with `struct` in the generated code itself; see schema.py.
"""

from __future__ import annotations

import struct

from moldau.broker.wire.batch import Buffer

INT32 = struct.Struct(">i")


class MalformedMessage(ValueError):
    """These bytes cannot be a message of the API and version that their header names."""


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits a byte, least significant first."""
    # Lengths and offset deltas that are too large for the table take a third of the loop's time
    # here.
    if 1 << 14 <= value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if 1 << 21 <= value < 1 << 28:
        low = value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80
        return bytes((*low, value >> 21))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Lengths are nearly always short: looked up, not computed.
UVARINTS: tuple[bytes, ...] = tuple(uvarint(n) for n in range(4096))
TABLE_SIZE = len(UVARINTS)


# All arrays of a message together hold no more than this. An element can be as short as three
# bytes on the wire and takes forty times as much in memory: a frame of 100 MiB that is nothing
# but tiny elements would take gigabytes and many seconds to decode.
MAX_ELEMENTS = 1 << 20


MAX_STRING = 0x7FFF  # bytes, in every encoding: clients refuse longer ones


def cut_text(text: bytes) -> bytes:
    """Cut a text that is too long for a string."""
    return text[:MAX_STRING].decode(errors="ignore").encode()


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Return the value and the position after it: at most five bytes, as lengths and tags are 32
    bits."""
    byte = buf[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    byte = buf[pos + 1]
    if byte < 0x80:
        return value | byte << 7, pos + 2
    value |= (byte & 0x7F) << 7
    byte = buf[pos + 2]
    if byte < 0x80:
        return value | byte << 14, pos + 3
    value |= (byte & 0x7F) << 14
    byte = buf[pos + 3]
    if byte < 0x80:
        return value | byte << 21, pos + 4
    value |= (byte & 0x7F) << 21
    byte = buf[pos + 4]
    if byte > 0x0F:
        raise MalformedMessage("a varint over 32 bits")
    return value | byte << 28, pos + 5


def skip_tag(buf: Buffer, pos: int, end: int) -> tuple[int, int, int]:
    """Read a tagged field's head: its tag, and where its value begins and ends."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if size > end - pos:
        raise MalformedMessage(f"tagged field {tag} of {size} bytes, {end - pos} left")
    return tag, pos, pos + size


def skip_tags(buf: Buffer, pos: int, end: int, count: int) -> int:
    """Skip unknown tagged fields. They are never an error."""
    for _ in range(count):
        _, _, pos = skip_tag(buf, pos, end)
    return pos


def pack_tags(tags: list[tuple[int, list[Buffer]]]) -> bytes:
    """Encode tagged fields, in tag order, after their count."""
    out = [uvarint(len(tags))]
    for tag, parts in tags:
        value = b"".join(parts)
        out += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(out)


def too_long(what: str, size: int, left: int) -> MalformedMessage:
    return MalformedMessage(f"{what}: {size} does not fit the {left} bytes left")


def too_many(what: str, count: int) -> MalformedMessage:
    return MalformedMessage(f"{what}: with these {count}, more than {MAX_ELEMENTS} elements")


def unpack_ints(letter: str, size: int, buf: Buffer, pos: int, count: int) -> list[int]:
    return list(struct.unpack_from(f">{count}{letter}", buf, pos))


def pack_ints(letter: str, values: list[int]) -> bytes:
    return struct.pack(f">{len(values)}{letter}", *values)
