"""Record batches to Arrow columns, many batches at once and without a Python object per record.

The only Python per record is the walk from length to length (about 0.1 us). All else is done by
numpy for all records of all batches at once, field by field: one varint of every record at a time.
The bytes come from any producer: whatever they are, the result is columns or CorruptBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.broker.wire import codecs
from moldau.broker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    checksum,
)
from moldau.ops.pipeline.source.fields import (
    Ints,
    field,
    gather,
    header_spans,
    headers_column,
    varints,
)

DECODED_LIMIT = 1 << 30  # an Arrow column has 2 GiB at most
PORTION = 4 << 20
MAGIC = 2
# The range of timestamps of Spark and Delta: the years 1 to 9999. (-1, no timestamp, is a
# millisecond before 1970, as in Spark's own Kafka source.)
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999

_LONGEST_LENGTH_SHIFT = 28


class FetchedBatch(NamedTuple):
    """A batch as received; its records count from offset `since` up to but without `until`."""

    header: BatchHeader
    data: Buffer
    since: int
    until: int
    aborted: bool = False

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & CONTROL)


class Columns(NamedTuple):
    """The records of some batches; `headers` is None unless they are wanted."""

    offset: Ints
    timestamp_ms: Ints
    timestamp_type: npt.NDArray[np.int32]
    key: Any
    value: Any
    headers: Any | None

    def __len__(self) -> int:
        return len(self.offset)


OnUnreadable = Callable[[FetchedBatch, CorruptBatch], None]


def decode(
    batches: Iterable[FetchedBatch],
    *,
    headers: bool,
    check_crcs: bool = True,
    on_unreadable: OnUnreadable | None = None,
) -> Iterator[Columns]:
    """The records that count, in the order of the batches; none of control or aborted batches.

    In portions of some megabytes, or of one batch: larger ones would not fit the CPU's caches.
    A batch that cannot be read is passed to `on_unreadable`; without it, CorruptBatch is raised.
    """
    wanted: list[FetchedBatch] = []
    payloads: list[bytes] = []
    size = 0
    for one in batches:
        if one.is_control or one.aborted or not one.header.record_count:
            continue
        try:
            payload = _payload(one, check_crcs=check_crcs)
        except CorruptBatch as fault:
            if on_unreadable is None:
                raise
            on_unreadable(one, fault)
            continue
        if payloads and size + len(payload) > PORTION:
            yield from _decode_portion(wanted, payloads, on_unreadable, headers=headers)
            wanted, payloads, size = [], [], 0
        wanted.append(one)
        payloads.append(payload)
        size += len(payload)
    if payloads:
        yield from _decode_portion(wanted, payloads, on_unreadable, headers=headers)


def _decode_portion(
    wanted: Sequence[FetchedBatch],
    payloads: Sequence[bytes],
    on_unreadable: OnUnreadable | None,
    *,
    headers: bool,
) -> Iterator[Columns]:
    """Decode all at once, or one by one if that fails, to find those that cannot be read."""
    try:
        yield _decode(wanted, payloads, headers=headers)
    except CorruptBatch as fault:
        if on_unreadable is None:
            raise
        if len(wanted) == 1:
            on_unreadable(wanted[0], fault)
            return
    else:
        return
    for one, payload in zip(wanted, payloads, strict=True):
        yield from _decode_portion([one], [payload], on_unreadable, headers=headers)


def _decode(wanted: Sequence[FetchedBatch], payloads: Sequence[bytes], *, headers: bool) -> Columns:
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    starts, ends = _walk(wanted, payloads, joined)
    return _columns(wanted, joined, starts, ends, headers=headers)


def _payload(one: FetchedBatch, *, check_crcs: bool) -> bytes:
    header = one.header
    if header.magic != MAGIC:
        raise CorruptBatch(f"a batch of format {header.magic}, not {MAGIC}")
    if header.record_count < 0:
        raise CorruptBatch(f"{header.record_count} records")
    if check_crcs and checksum(one.data) != header.crc:
        raise CorruptBatch(
            f"the checksum of the batch at offset {header.base_offset} is wrong: "
            f"{int.from_bytes(one.data[CRC_AT : CRC_AT + 4], 'big'):#010x}"
        )
    data = memoryview(one.data)[HEADER_SIZE:]
    codec = header.attributes & CODEC_MASK
    return bytes(data) if codec == codecs.NONE else codecs.decompress(codec, data, DECODED_LIMIT)


def _walk(
    wanted: Sequence[FetchedBatch], payloads: Sequence[bytes], joined: bytes
) -> tuple[Ints, Ints]:
    """The positions where records begin (with their length) and end."""
    edges: list[int] = [0]
    add = edges.append
    at = 0
    stop = 0
    try:
        for one, payload in zip(wanted, payloads, strict=True):
            stop += len(payload)
            for _ in range(one.header.record_count):
                byte = joined[at]
                if byte < 0x80:
                    at += (byte >> 1) + 1
                elif (more := joined[at + 1]) < 0x80:
                    at += (byte >> 1 & 0x3F) + (more << 6) + 2
                else:
                    at = _after_long(joined, at)
                add(at)
            if at != stop:
                raise CorruptBatch(
                    f"the records of the batch at offset {one.header.base_offset} "
                    "do not end where it does"
                )
    except IndexError:
        raise CorruptBatch("a record does not end inside its batch") from None
    positions = np.array(edges, np.int64)
    return positions[:-1], positions[1:]


def _after_long(buf: bytes, at: int) -> int:
    """The end of a record whose length has more than two bytes."""
    value = shift = 0
    while shift <= _LONGEST_LENGTH_SHIFT:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + (value >> 1)
        shift += 7
    raise CorruptBatch("a record length of more than five bytes")


def _columns(
    wanted: Sequence[FetchedBatch], joined: bytes, starts: Ints, ends: Ints, *, headers: bool
) -> Columns:
    data = np.frombuffer(joined, np.uint8)
    length, at = varints(data, starts, ends)
    if (length != ends - at).any():
        raise CorruptBatch("a record of negative length")
    at += 1  # after the attributes
    timestamp_delta, at = varints(data, at, ends)
    offset_delta, at = varints(data, at, ends)
    key_at, key_end, key_valid = field(data, at, ends)
    value_at, value_end, value_valid = field(data, key_end, ends)
    header_count, at = varints(data, value_end, ends)
    if (header_count < 0).any():
        raise CorruptBatch("a record with a negative number of headers")
    spans = None
    if header_count.any():
        spans = header_spans(data, at, ends, header_count)
    elif (at != ends).any():
        raise CorruptBatch("a record does not end where its length says")

    counts = [one.header.record_count for one in wanted]

    def per_record(values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), counts)

    offset = per_record([one.header.base_offset for one in wanted]) + offset_delta
    _check_offsets(wanted, counts, offset_delta)
    append_time = per_record(
        [1 if one.header.attributes & LOG_APPEND_TIME else 0 for one in wanted]
    ).astype(np.int32)
    timestamp = per_record([one.header.base_timestamp for one in wanted]) + timestamp_delta
    if append_time.any():
        stamped = per_record([one.header.max_timestamp for one in wanted])
        timestamp = np.where(append_time == 1, stamped, timestamp)

    since, until = per_record([one.since for one in wanted]), per_record([o.until for o in wanted])
    counted = (offset >= since) & (offset < until)
    chosen = None if counted.all() else np.flatnonzero(counted)
    buffer = pa.py_buffer(joined)
    found_headers = None
    if headers:
        found_headers = headers_column(buffer, len(offset), header_count, spans)
        if chosen is not None:
            found_headers = found_headers.take(pa.array(chosen))
    if chosen is not None:
        offset, timestamp, append_time = offset[chosen], timestamp[chosen], append_time[chosen]
    return Columns(
        offset,
        np.clip(timestamp, FIRST_MS, LAST_MS),
        append_time,
        gather(buffer, key_at, key_end, key_valid, chosen),
        gather(buffer, value_at, value_end, value_valid, chosen),
        found_headers,
    )


def _check_offsets(wanted: Sequence[FetchedBatch], counts: list[int], deltas: Ints) -> None:
    """Strictly ascending in each batch, within its header's range."""
    if not len(deltas):
        return
    last = np.repeat(np.array([one.header.last_offset_delta for one in wanted], np.int64), counts)
    firsts = np.zeros(len(deltas), np.bool_)
    heads = np.cumsum(np.array([0, *counts[:-1]], np.int64))
    firsts[heads[np.array(counts) > 0]] = True
    rising = np.empty(len(deltas), np.bool_)
    rising[0] = True
    np.greater(deltas[1:], deltas[:-1], out=rising[1:])
    if not ((rising | firsts) & (deltas >= 0) & (deltas <= last)).all():
        raise CorruptBatch("offset deltas that do not ascend within their batch")
