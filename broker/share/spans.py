"""What a run of batches holds, by their headers: records, or something that is not delivered.

Control batches are never delivered, nor, to a group that reads committed records, batches of
aborted transactions. The records inside a batch are not looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from moldau.broker.wire.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    TRANSACTIONAL,
    Buffer,
    CorruptBatch,
)

_OFFSET_AND_LENGTH = Struct(">qi").unpack_from
_ATTRIBUTES_AND_DELTA = Struct(">hi").unpack_from
_PRODUCER_ID = Struct(">q").unpack_from
_PRODUCER_ID_AT = 43


class Span(NamedTuple):
    """A batch: its first and last offset, and where it lies in the buffers that were read."""

    first: int
    last: int
    is_delivered: bool
    buffer: int
    at: int
    end: int


class Read(NamedTuple):
    """All there is in a log from one offset to another: an offset in no span has no record."""

    first: int
    end: int
    buffers: Sequence[Buffer]
    spans: list[Span]


_last = itemgetter(1)


def read_of(
    first: int,
    end: int,
    buffers: Sequence[Buffer],
    aborted: Sequence[tuple[int, int]] = (),
) -> Read:
    """Return what was read from `first` on, up to `end` at least.

    `aborted` are the aborted transactions of a committed read, as Fetch returns them: producer id
    and first offset, by first offset. Raises CorruptBatch.
    """
    spans: list[Span] = []
    waiting = list(reversed(aborted))
    aborting: set[int] = set()
    for number, buffer in enumerate(buffers):
        at, size = 0, len(buffer)
        while at < size:
            if size - at < HEADER_SIZE:
                raise CorruptBatch(f"{size - at} bytes cannot hold a batch header")
            base, length = _OFFSET_AND_LENGTH(buffer, at)
            attributes, delta = _ATTRIBUTES_AND_DELTA(buffer, at + ATTRIBUTES_AT)
            after = at + length + LENGTH_OVERHEAD
            if length < HEADER_SIZE - LENGTH_OVERHEAD or after > size or delta < 0:
                raise CorruptBatch(f"batch of length {length} and {delta} does not fit {size - at}")
            is_delivered = True
            if attributes & (CONTROL | TRANSACTIONAL):
                is_delivered = not attributes & CONTROL
                if waiting or aborting:
                    while waiting and waiting[-1][1] <= base:
                        aborting.add(waiting.pop()[0])
                    (producer_id,) = _PRODUCER_ID(buffer, at + _PRODUCER_ID_AT)
                    if attributes & CONTROL:  # a producer's transaction ends with its marker
                        aborting.discard(producer_id)
                    elif producer_id in aborting:
                        is_delivered = False
            if base + delta >= first:
                spans.append(Span(base, base + delta, is_delivered, number, at, after))
            at = after
    return Read(first, max(end, spans[-1].last + 1) if spans else end, buffers, spans)


def first_from(spans: list[Span], offset: int) -> int:
    """Return the index of the first span that ends at this offset or behind it."""
    return bisect_left(spans, offset, key=_last)


def holding(read: Read, ranges: Sequence[tuple[int, int, int]]) -> list[Buffer]:
    """Return the batches that hold a record of these ranges, as they lie in the log: neighbours as
    one piece. The ranges ascend."""
    pieces: list[tuple[int, int, int]] = []
    spans = read.spans
    sent = 0  # how many of the spans have been looked at: a batch may hold parts of several ranges
    for first, last, _ in ranges:
        index = bisect_left(spans, first, lo=max(0, sent - 1), key=_last)
        while index < len(spans) and spans[index].first <= last:
            if index >= sent:
                span = spans[index]
                if pieces and pieces[-1][0] == span.buffer and pieces[-1][2] == span.at:
                    pieces[-1] = (span.buffer, pieces[-1][1], span.end)
                else:
                    pieces.append((span.buffer, span.at, span.end))
            index += 1
        sent = max(sent, index)
    return [memoryview(read.buffers[buffer])[at:end] for buffer, at, end in pieces]
