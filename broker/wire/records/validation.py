"""Checks before an append that the records of a batch are what its header declares.

It accepts whatever `walking.walk` accepts of a batch with consecutive offsets from 0, as producers
build them, but builds nothing and is fast where records are alike: records of one size usually have
their fields at the same positions, so a whole run of them is checked column by column. A column is
a slice of the payload with the record's size as its step; comparing columns costs a fraction of
parsing the records one by one.

Timestamps are compared with the header. Only whether the header is right is found out here: nearly
always it is, and `walk` finds the exact timestamps of the few other batches.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.records.headers import end_of_headers
from moldau.broker.wire.records.varints import long_varint

MIN_RUN = 6  # records: fewer are parsed in less time than their columns are compared

# Offset deltas as zigzag varints, by column: of one byte up to 63, of two bytes up to 8191.
ONE_BYTE, TWO_BYTES = 64, 8192
_DELTA = bytes(2 * delta for delta in range(ONE_BYTE))
_DELTA_LOW = bytes((2 * delta & 0x7F) | 0x80 for delta in range(TWO_BYTES))
_DELTA_HIGH = bytes(2 * delta >> 7 for delta in range(TWO_BYTES))
_CONTINUED = bytes(range(0x80, 0x100))  # a varint's bytes but for its last one

_BELOW = tuple(bytes(range(byte)) for byte in range(0x100))
# The first bytes of zigzag varints that are alike but for it, by the largest: odd is negative.
_UP_TO = tuple(
    bytes(code for code in range(0x100) if code & 1 or code <= largest) for largest in range(0x100)
)
_POSITIVE = bytes(range(0, 0x100, 2))
_MAX_WIDTH = 9  # of a timestamp: one of ten bytes may be beyond an int64
_UNKNOWN = -2  # the zigzag code of a largest timestamp that is not to be checked
_HAS_LARGEST, _HAS_LARGER, _HAS_NEGATIVE = 1, 2, 4


def check_records(
    count: int, payload: bytes, max_delta: int | None = None, *, none_before: bool = False
) -> bool:
    """Raise CorruptBatch unless `payload` is `count` records at consecutive offsets.

    Returns whether `max_delta` is the largest difference of their timestamps from the header's
    first one and, with `none_before`, none of them is negative.
    """
    top = _UNKNOWN if max_delta is None or max_delta < 0 else 2 * max_delta
    at = index = last_size = found = 0
    try:
        while index < count:
            start = at
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            end = at + (byte >> 1 ^ -(byte & 1))
            timestamp_at = at + 1  # after the attributes
            byte = payload[timestamp_at]
            at += 2
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            if byte >= top or byte & 1:
                found |= 1 if byte == top else 4 if byte & 1 else 2  # the flags, below
            delta_at = at
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                byte, at = long_varint(payload, at, byte)
            if byte != 2 * index:
                delta = byte >> 1 ^ -(byte & 1)
                raise CorruptBatch(f"record {index} has the offset delta {delta}")
            key_at = at
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            key_bytes_at = at
            if not byte & 1:
                at += byte >> 1
            value_at = at
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            value_bytes_at = at
            if not byte & 1:
                at += byte >> 1
            headers_at = at
            at = at + 1 if payload[at] == 0 else end_of_headers(payload, at)
            if at != end:
                raise CorruptBatch(f"record {index} does not end where it says")
            index += 1
            size = at - start
            if size == last_size and count - index >= MIN_RUN and headers_at + 1 == at:
                equal = [
                    *range(start, timestamp_at - 1),
                    *range(key_at, key_bytes_at),
                    *range(value_at, value_bytes_at),
                    headers_at,
                ]
                run = _alike(payload, at, size, count - index, equal, timestamp_at, delta_at, index)
                if run and max_delta is not None:
                    found |= _compare_timestamps(
                        payload, timestamp_at + size, delta_at - timestamp_at, size,
                        at + run * size, top, none_before,
                    )  # fmt: skip
                at += run * size
                index += run
            last_size = size
    except IndexError:
        raise CorruptBatch(f"record {index} does not end inside its batch") from None
    if at != len(payload):
        raise CorruptBatch(f"{len(payload) - at} bytes after the {count} declared records")
    return found == _HAS_LARGEST or (found == _HAS_LARGEST | _HAS_NEGATIVE and not none_before)


def _alike(
    payload: bytes, at: int, size: int, most: int,
    equal: list[int], timestamp_at: int, delta_at: int, index: int,
) -> int:  # fmt: skip
    """Return how many records from `at` on are laid out like the one before, which is `size` bytes
    long.

    `equal` are positions in that one whose bytes must be the same in all of them: every length, and
    the count of headers, which is 0. Timestamps may differ, in as many bytes; offset deltas
    continue from `index`, whose position in that record is `delta_at`.
    """
    width = _width(payload, delta_at)
    limit = ONE_BYTE if width == 1 else TWO_BYTES
    run = min(most, (len(payload) - at) // size, limit - index)
    if run < MIN_RUN or width > 2:
        return 0
    stop = at + run * size
    for position in equal:
        column = payload[position + size : stop : size]
        run = len(column) - len(column.lstrip(payload[position : position + 1]))
        if run < MIN_RUN:
            return 0
        stop = at + run * size
    last = timestamp_at + _width(payload, timestamp_at) - 1
    for position in range(timestamp_at, last):
        if payload[position + size : stop : size].translate(None, _CONTINUED):
            return 0
    if not payload[last + size : stop : size].isascii():
        return 0
    deltas = payload[delta_at + size : stop : size]
    if width == 1:
        is_sequence = deltas == _DELTA[index : index + run]
    else:
        is_sequence = (
            deltas == _DELTA_LOW[index : index + run]
            and payload[delta_at + 1 + size : stop : size] == _DELTA_HIGH[index : index + run]
        )
    return run if is_sequence else 0


def _compare_timestamps(
    payload: bytes, at: int, width: int, size: int, stop: int, top: int, none_before: bool
) -> int:  # fmt: skip
    """Return flags that describe the timestamps of a run of records.

    They begin at `at` and have `width` bytes each. The columns are compared from the last byte of
    the varint on, which is the most significant. Producers usually write timestamps in order: those
    that begin like the largest are the last ones.
    """
    first = payload[at:stop:size]
    found = _HAS_NEGATIVE if none_before and first.translate(None, _POSITIVE) else 0
    if top >> 7 * width:
        return found  # all are smaller, or negative
    begin = 0
    for place in range(width - 1, 0, -1):
        byte = top >> 7 * place & 0x7F | (0 if place == width - 1 else 0x80)
        column = payload[at + place : stop : size][begin:]
        beyond = column.translate(None, _BELOW[byte])
        if not beyond:
            return found
        skipped = len(column) - len(beyond)
        if column[skipped:].lstrip(bytes((byte,))):
            return found | _compare_each(payload, at, width, size, stop, top)
        begin += skipped
    byte = top if width == 1 else top & 0x7F | 0x80
    last = first[begin:]
    if last.translate(None, _UP_TO[byte]):
        return found | _compare_each(payload, at, width, size, stop, top)
    return found | _HAS_LARGEST if byte in last else found


def _compare_each(payload: bytes, at: int, width: int, size: int, stop: int, top: int) -> int:
    """Compare timestamps that are not in order."""
    if width > _MAX_WIDTH:
        return _HAS_LARGER  # perhaps: record by record it can be told
    codes: Iterable[int] = payload[at + width - 1 : stop : size]
    for place in range(at + width - 2, at - 1, -1):
        column = payload[place:stop:size]
        codes = [code << 7 | byte & 0x7F for code, byte in zip(codes, column, strict=True)]
    largest = max((code for code in codes if not code & 1), default=-1)
    return _HAS_LARGER if largest > top else _HAS_LARGEST if largest == top else 0


def _width(payload: bytes, at: int) -> int:
    """Return the size of the varint at `at`."""
    width = 1
    while payload[at] > 0x7F:
        at += 1
        width += 1
    return width
