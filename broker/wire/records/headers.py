"""The headers of a record, encoded and decoded."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.records.varints import NULL_LENGTH, varint, zigzag


def decode_headers(raw: bytes) -> list[tuple[str, bytes | None]]:
    """Decode the headers of a record; a key that is not UTF-8 is repaired, as in Java clients."""
    try:
        end = end_of_headers(raw, 0)
    except IndexError:
        raise CorruptBatch("record headers end early") from None
    if end != len(raw):
        raise CorruptBatch("record headers do not end where their record does")
    headers: list[tuple[str, bytes | None]] = []
    count, at = varint(raw, 0)
    for _ in range(count):
        length, at = varint(raw, at)
        key = raw[at : at + length].decode("utf-8", "replace")
        length, at = varint(raw, at + length)
        headers.append((key, None if length < 0 else raw[at : at + length]))
        at += max(length, 0)
    return headers


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encode headers for `Record.headers`."""
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        key = name.encode()
        parts += (zigzag(len(key)), key)
        parts += (NULL_LENGTH,) if value is None else (zigzag(len(value)), value)
        count += 1
    return zigzag(count) + b"".join(parts)


def end_of_headers(payload: bytes, at: int) -> int:
    count, at = varint(payload, at)
    if count < 0:
        raise CorruptBatch(f"a record with {count} headers")
    for _ in range(count):
        length, at = varint(payload, at)
        if length < 0:
            raise CorruptBatch("a record header without a key")
        length, at = varint(payload, at + length)
        if length > 0:
            at += length
    return at
