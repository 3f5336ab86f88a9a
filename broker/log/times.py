"""Offsets by timestamp: the sparse index says where to begin, batch headers where to stop.

Only the one batch that holds the answer is decoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from broker.log.reading import Reading
from broker.store.streams import Streams
from broker.wire.batch import read_header, split_batches
from broker.wire.records import first_at_or_after, offset_of_max_timestamp

SCAN_COUNT = 16
DECODED_LIMIT = 1 << 30


class Found(NamedTuple):
    offset: int
    timestamp: int


async def batches_from(streams: Streams, log: Reading, offset: int) -> AsyncIterator[memoryview]:
    """The batches from the one that contains `offset` on, in order."""
    while offset < log.end:
        key = log.stream_for(offset)
        entries = await streams.entries_at(key, offset, SCAN_COUNT)
        following = offset
        for entry in entries:
            for batch in split_batches(entry.blob):
                header = read_header(batch)
                if header.next_offset > offset:
                    yield batch
                following = max(following, header.next_offset)
        if following == offset:
            if offset >= log.clean_end:
                return
            following = log.clean_end  # nothing of the cleaned part is left from here on
        offset = following


async def offset_for_timestamp(streams: Streams, log: Reading, timestamp: int) -> Found | None:
    """The first record whose timestamp is at least `timestamp`."""
    point = await streams.index_before(log.key, timestamp)
    start = max(log.start, point[0] if point is not None else 0)
    async for batch in batches_from(streams, log, start):
        if read_header(batch).max_timestamp < timestamp:
            continue
        found = first_at_or_after(batch, timestamp, DECODED_LIMIT)
        if found is not None and found[0] >= log.start:
            return Found(*found)
    return None


async def offset_of_largest_timestamp(streams: Streams, log: Reading) -> Found | None:
    """The record with the largest timestamp (KIP-734)."""
    state = log.state
    begin = state.max_timestamp_base if state.max_timestamp_base >= log.start else log.start
    best: memoryview | None = None
    largest = -1
    async for batch in batches_from(streams, log, begin):
        header = read_header(batch)
        if header.max_timestamp > largest:
            best, largest = batch, header.max_timestamp
        if largest == state.max_timestamp:
            break
    if best is None:
        return None
    return Found(*offset_of_max_timestamp(best, DECODED_LIMIT))
