"""The headers of many records as one Arrow column."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.broker.wire.batch import CorruptBatch
from moldau.ops.pipeline.source.fields import Bools, Bytes, Ints, field, gather

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_FEW = 8  # so few records with more headers are cheaper to read one by one


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
