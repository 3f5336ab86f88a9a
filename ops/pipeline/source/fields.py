"""One field of many records at a time: the varints and byte strings of the record format.

Keys and values are not cut out one by one: an Arrow array whose elements alternate between a field
and the gap to the next one is laid over the received bytes, and `take` copies every second element
into a new array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.broker.wire.batch import CorruptBatch

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_LONGEST_VARINT = 10


def varints(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """A zigzag varint of each record, and the positions after it."""
    _check_inside(at, ends)
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    going = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(going):
        if shift >= 7 * _LONGEST_VARINT:
            raise CorruptBatch("a varint longer than ten bytes")
        where = at[going]
        _check_inside(where, ends[going])
        byte = data[where]
        value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[going] += 1
        going = going[byte > 0x7F]
        shift += 7
    number = (value >> np.uint64(1)).astype(np.int64)
    sign = (value & np.uint64(1)).astype(np.int64)
    return number ^ -sign, at


def _check_inside(at: Ints, ends: Ints) -> None:
    if (at >= ends).any():
        raise CorruptBatch("a field overruns its record")


def field(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints, Bools]:
    """Bytes after their length: the positions where they begin and end; not valid if null."""
    length, at = varints(data, at, ends)
    valid = length >= 0
    length = np.where(valid, length, 0)
    if (length > ends - at).any():
        raise CorruptBatch("a field overruns its record")
    return at, at + length, valid


def gather(buffer: Any, starts: Ints, ends: Ints, valid: Bools, chosen: Ints | None) -> Any:
    """A binary array of the fields that follow each other in a buffer, with gaps."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = ends
    validity = None
    if not valid.all():
        both = np.ones(2 * count - 1, np.bool_)
        both[0::2] = valid
        validity = pa.py_buffer(np.packbits(both, bitorder="little"))
    fields_and_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [validity, pa.py_buffer(edges), buffer]
    )
    picked = np.arange(count, dtype=np.int64) if chosen is None else chosen
    return fields_and_gaps.take(pa.array(picked * 2))
