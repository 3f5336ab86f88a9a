"""The entries of a log as bytes: where one ends, what of it lies before an offset. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import Buffer, find_batch, headers


def cut_parts(parts: tuple[Buffer, ...], end: int) -> Iterator[Buffer]:
    """What of an entry's parts lies before `end`, the edge of a batch."""
    for part in parts:
        stop = find_batch(part, end)
        if stop:
            yield part if stop == len(part) else memoryview(part)[:stop]
        if stop < len(part):
            return


def end_of(entry: Entry) -> int:
    """The offset after the last one of an entry."""
    end = entry.base
    for header in headers(entry.blob):
        end = header.next_offset
    return end
