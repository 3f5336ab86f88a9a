"""One field of many records at a time: varints, byte strings and headers of the record format.

Keys and values are not cut out one by one: an Arrow array whose elements alternate between a field
and the gap to the next one is laid over the received bytes, and `take` copies every second element
into a new array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.broker.wire.batch import CorruptBatch

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_LONGEST_VARINT = 10
_FEW = 8  # so few records with more headers are cheaper to read one by one


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


# --- headers ---


class HeaderSpans(NamedTuple):
    """Positions of the keys and values of all headers, in the order of the bytes."""

    key_at: Ints
    key_end: Ints
    value_at: Ints
    value_end: Ints
    value_valid: Bools


def header_spans(data: Bytes, at: Ints, ends: Ints, counts: Ints) -> HeaderSpans:
    """All first headers at once, then all second ones, and so on."""
    at = at.copy()
    rounds: list[HeaderSpans] = []
    left = counts.copy()
    active = np.flatnonzero(left > 0)
    while len(active) > _FEW or (len(active) and not rounds):
        until = ends[active]
        key_at, key_end, key_valid = field(data, at[active], until)
        if not key_valid.all():
            raise CorruptBatch("a record header without a key")
        value_at, value_end, value_valid = field(data, key_end, until)
        rounds.append(HeaderSpans(key_at, key_end, value_at, value_end, value_valid))
        at[active] = value_end
        left[active] -= 1
        active = active[left[active] > 0]
    for index in active:
        one, stop = at[index : index + 1], ends[index : index + 1]
        for _ in range(int(left[index])):
            key_at, key_end, key_valid = field(data, one, stop)
            if not key_valid.all():
                raise CorruptBatch("a record header without a key")
            value_at, one, value_valid = field(data, key_end, stop)
            rounds.append(HeaderSpans(key_at, key_end, value_at, one, value_valid))
        at[index] = one[0]
    if (at != ends).any():
        raise CorruptBatch("a record does not end where its length says")
    together = [np.concatenate(column) for column in zip(*rounds, strict=True)]
    order = np.argsort(together[0], kind="stable")  # by position: the order of records and headers
    return HeaderSpans._make(column[order] for column in together)


def headers_column(buffer: Any, count: int, counts: Ints, spans: HeaderSpans | None) -> Any:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    if spans is None:
        # As in Spark's own source: null for a record without headers.
        return pa.nulls(count, HEADERS_TYPE)
    present = np.ones(len(spans.key_at), np.bool_)
    keys = gather(buffer, spans.key_at, spans.key_end, present, None)
    values = gather(buffer, spans.value_at, spans.value_end, spans.value_valid, None)
    pairs = pa.StructArray.from_arrays([_text(keys), values], fields=list(HEADERS_TYPE.value_type))
    has_some = counts > 0
    validity = None if has_some.all() else pa.py_buffer(np.packbits(has_some, bitorder="little"))
    return pa.Array.from_buffers(
        HEADERS_TYPE, count, [validity, pa.py_buffer(offsets)], children=[pairs]
    )


def _text(keys: Any) -> Any:
    """Decode UTF-8; invalid bytes are replaced, as Java clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        patched = [key.decode("utf-8", "replace") for key in keys.to_pylist()]
        return pa.array(patched, pa.string())
