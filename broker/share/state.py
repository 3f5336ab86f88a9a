"""What is stored of a share-partition: the whole of it with every write, mostly 15 to 100 bytes.

    byte   format: 1, or 2 if what follows the head is compressed (zlib)
    int64  start; -1: not resolved
    int32  the number of records of the window
    int32  the number of jumps over offsets without a record
           the jumps: records before it, offsets skipped (varints)
           the records, a byte each: available with its delivery count, acknowledged, archived

Leading finished records are left out, since the start is behind them, and so are trailing ones that
nobody was given: they are read again.
"""

from __future__ import annotations

import zlib
from struct import Struct
from struct import error as StructError

from moldau.broker.share import states
from moldau.broker.share.window import Window

UNRESOLVED = -1
_PLAIN, _COMPRESSED = 1, 2
_COMPRESS_FROM = 64
_LEVEL = 1
_HEAD = Struct(">bqii")
_MAX_RECORDS = 1 << 24
_SEVEN = 0x7F
_MORE = 0x80


class CorruptState(ValueError):
    """What is stored for a share-partition is not a state of it."""


def encode(window: Window | None) -> bytes:
    """Return what is stored; without a window the start is not resolved yet."""
    if window is None:
        return _HEAD.pack(_PLAIN, UNRESOLVED, 0, 0)
    stored = bytes(window.records.translate(states.STORED))
    rest = stored.lstrip(states.FINISHED)
    first = window.base + len(stored) - len(rest)
    rest = rest.rstrip(b"\0")
    start = window.offset(first)
    jumps = window.jumps(first, first + len(rest)) if rest else []
    body = rest
    if jumps:
        body = b"".join(_varint(each) for pair in jumps for each in pair) + rest
    kind = _PLAIN
    if len(body) > _COMPRESS_FROM:
        kind, body = _COMPRESSED, zlib.compress(body, _LEVEL)
    return _HEAD.pack(kind, start, len(rest), len(jumps)) + body


def decode(stored: bytes) -> Window | None:
    """Return the window that was stored; None if nothing was, or no start. Raises CorruptState."""
    if not stored:
        return None
    try:
        kind, start, count, holes = _HEAD.unpack_from(stored)
        if kind not in (_PLAIN, _COMPRESSED):
            raise CorruptState(f"a share-partition's state of format {kind}")
        if start == UNRESOLVED:
            return None
        if start < 0 or not 0 <= count < _MAX_RECORDS or not 0 <= holes <= count:
            raise CorruptState(f"start {start}, {count} records, {holes} jumps")
        body = stored[_HEAD.size :]
        if kind == _COMPRESSED:
            body = zlib.decompress(body)
        return _window(start, count, holes, body)
    except (StructError, zlib.error, IndexError) as fault:
        raise CorruptState(str(fault)) from None


def _window(start: int, count: int, holes: int, body: bytes) -> Window:
    window = Window(start)
    at = 0
    runs: list[tuple[int, int]] = []  # how many records, how many offsets are skipped behind them
    for _ in range(holes):
        run, at = _read_varint(body, at)
        skipped, at = _read_varint(body, at)
        runs.append((run, skipped))
    records = body[at:]
    if len(records) != count:
        raise CorruptState(f"{len(records)} records of {count}")
    unknown = records.translate(None, _MAY_BE_STORED)
    if unknown:
        raise CorruptState(f"a record of state {unknown[0]}")
    offset = start
    rest = count - sum(before for before, _ in runs)
    if rest < 0:
        raise CorruptState("jumps behind the last record")
    for run, skipped in [*runs, (rest, 0)]:
        if run:
            window.extend(offset, run, states.AVAILABLE)
        offset += run + skipped
    window.records[:] = records
    window.finished = count - len(records.translate(None, states.FINISHED))
    window.trim()
    return window


_MAY_BE_STORED = bytes(range(states.COUNT + 1)) + states.FINISHED


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > _SEVEN:
        out.append(value & _SEVEN | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & _SEVEN) << shift
        if byte <= _SEVEN:
            return value, at
        shift += 7
        if shift > 63:
            raise CorruptState("a varint over 64 bits")
