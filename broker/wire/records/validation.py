"""Are the records of a batch what its header declares? The check before a batch is appended.

It accepts what `walking.walk` accepts of a batch with consecutive offsets from 0, as producers make
them, but builds nothing and is fast where records are alike: records of one size mostly have their
fields in the same places, so a whole run of them is checked column by column. A column is a slice
of the payload with the record's size as its step; comparing columns costs a fraction of parsing the
records one by one.
"""

from __future__ import annotations

from broker.wire.batch import CorruptBatch
from broker.wire.records.headers import end_of_headers
from broker.wire.records.varints import long_varint

MIN_RUN = 6  # records: fewer are parsed in less time than their columns are compared

# Offset deltas as zigzag varints, by column: of one byte up to 63, of two bytes up to 8191.
ONE_BYTE, TWO_BYTES = 64, 8192
_DELTA = bytes(2 * delta for delta in range(ONE_BYTE))
_DELTA_LOW = bytes((2 * delta & 0x7F) | 0x80 for delta in range(TWO_BYTES))
_DELTA_HIGH = bytes(2 * delta >> 7 for delta in range(TWO_BYTES))
_CONTINUED = bytes(range(0x80, 0x100))  # a varint's bytes but for its last one


def check_records(count: int, payload: bytes) -> None:
    """Raises CorruptBatch unless `payload` is `count` records at consecutive offsets."""
    at = index = last_size = 0
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
            timestamp_at = at = at + 1  # after the attributes
            if payload[at] < 0x80:
                at += 1
            elif payload[at + 1] < 0x80:
                at += 2
            else:
                _, at = long_varint(payload, at + 1, payload[at])
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
                at += run * size
                index += run
            last_size = size
    except IndexError:
        raise CorruptBatch(f"record {index} does not end inside its batch") from None
    if at != len(payload):
        raise CorruptBatch(f"{len(payload) - at} bytes after the {count} declared records")


def _alike(
    payload: bytes, at: int, size: int, most: int,
    equal: list[int], timestamp_at: int, delta_at: int, index: int,
) -> int:  # fmt: skip
    """How many records from `at` on are laid out like the one before, which is `size` bytes long.

    `equal`: positions in that one whose bytes must be the same in all of them: every length, and
    the count of headers, which is 0. Timestamps may differ, in as many bytes; offset deltas go on
    from `index`, whose position in that record is `delta_at`.
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


def _width(payload: bytes, at: int) -> int:
    """How many bytes the varint at `at` has."""
    width = 1
    while payload[at] > 0x7F:
        at += 1
        width += 1
    return width
