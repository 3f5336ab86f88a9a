"""Offsets by timestamp: the sparse index tells where to start, batch headers where to stop.

Only the one batch that holds the answer is decoded; one that cannot be is passed over. Index
points are about a MiB apart; those of the cleaned part of a compacted log are in an index of their
own, so that their positions fit the generation they were counted in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from moldau.broker.log.log import OffsetAndTimestamp
from moldau.broker.log.reading.reader import LogMoved, LogReader
from moldau.broker.store.streams import Streams
from moldau.broker.wire.batch import Buffer, CorruptBatch, read_header, split_batches
from moldau.broker.wire.records import first_at_or_after, timestamps_in


class LogPosition(NamedTuple):
    """An entry's edge: its base offset and its position in all bytes ever appended."""

    offset: int
    size: int


# --- the sparse index ---


async def position_before_time(streams: Streams, log: LogReader, timestamp: int) -> LogPosition:
    """A position before which every timestamp is below `timestamp`; at least the log start."""
    start = LogPosition(log.start, log.start_bytes)
    clean = log.clean
    point = await streams.index_before(log.key, timestamp)
    if point is not None and point[0] >= clean.end:
        return max(start, LogPosition(*point)) if _exists(log, point[0]) else start
    if log.start < clean.end:
        point = await streams.index_before(log.clean_key, timestamp)
        if point is not None:
            return max(start, LogPosition(*point))
    return start


async def indexed_positions(streams: Streams, log: LogReader) -> AsyncGenerator[LogPosition, None]:
    """The indexed positions after the log start, in order except where timestamps are equal."""
    clean = log.clean
    if log.start < clean.end:
        async for position in _all_positions(streams, log.clean_key):
            if position.offset > log.start:
                yield position
    async for position in _all_positions(streams, log.key):
        offset = position.offset
        if offset >= clean.end and offset > log.start and _exists(log, offset):
            yield position


def _exists(log: LogReader, offset: int) -> bool:
    """Is the point usable? One inside a gap counts bytes that are lost."""
    following = log.epochs.skip_gap(offset)
    return following == offset or log.epochs.skip_gap(offset - 1) != following


async def forget_positions(streams: Streams, key: bytes, first_kept: int) -> None:
    """Remove from a stream's index what points before `first_kept`."""
    while points := await streams.index_points(key):
        stale = [point for point in points if point[0] < first_kept]
        await streams.drop_index(key, stale)
        if len(stale) < len(points):
            break


async def _all_positions(streams: Streams, key: bytes) -> AsyncGenerator[LogPosition, None]:
    page = 0
    while points := await streams.index_points(key, page):
        for point in points:
            yield LogPosition(*point)
        page += 1


# --- look-up ---


async def batches_from(log: LogReader, offset: int) -> AsyncGenerator[memoryview, None]:
    """The batches from the one that contains `offset` on, in order, each once."""
    while True:
        try:
            async for entry in log.scan(offset):
                for batch in split_batches(entry.blob):
                    following = read_header(batch).next_offset
                    if following > offset:
                        yield batch
                        offset = following
        except LogMoved:
            offset = max(offset, log.start)
        else:
            return


async def offset_for_timestamp(
    streams: Streams, log: LogReader, timestamp: int
) -> OffsetAndTimestamp | None:
    """The first record whose timestamp is at least `timestamp`."""
    position = await position_before_time(streams, log, timestamp)
    async with aclosing(batches_from(log, position.offset)) as batches:
        async for batch in batches:
            header = read_header(batch)
            if header.max_timestamp < timestamp:
                continue
            try:
                search = partial(_search, timestamp, log.start)
                found = await log.unpacking.apply(search, batch, log.unpacked_limit())
            except CorruptBatch as fault:
                log.note_unreadable(header.base_offset, fault)
                continue
            if found is not None:
                return OffsetAndTimestamp(*found)
    return None


async def offset_of_largest_timestamp(log: LogReader) -> OffsetAndTimestamp | None:
    """The first record with the largest timestamp (KIP-734)."""
    state, clean = log.state, log.clean
    begin = state.max_timestamp_base
    if begin < clean.end:
        # It is, or was, in the cleaned part: start with the largest that compaction left.
        begin = clean.max_timestamp_base
    best: memoryview | None = None
    largest = -1
    async with aclosing(batches_from(log, max(begin, log.start))) as batches:
        async for batch in batches:
            header = read_header(batch)
            newest = header.max_timestamp
            if newest > largest and header.base_offset < log.start:
                newest = (await _newest(log, batch)).timestamp
            if newest > largest:
                best, largest = batch, newest
            if largest == state.max_timestamp:
                break
    return None if best is None else await _newest(log, best)


def _search(timestamp: int, start: int, batch: Buffer, limit: int) -> tuple[int, int] | None:
    return first_at_or_after(batch, timestamp, limit, start)


def _search_newest(start: int, batch: Buffer, limit: int) -> OffsetAndTimestamp:
    found = OffsetAndTimestamp(-1, -1)
    for offset, timestamp in timestamps_in(batch, limit):
        if offset >= start and timestamp > found.timestamp:
            found = OffsetAndTimestamp(offset, timestamp)
    return found


async def _newest(log: LogReader, batch: memoryview) -> OffsetAndTimestamp:
    """The first record from the log start on that has the largest timestamp; -1 twice for none.

    Of a batch that cannot be read, what its header says: it is still the newest of the log.
    """
    start = log.start
    try:
        search = partial(_search_newest, start)
        return await log.unpacking.apply(search, batch, log.unpacked_limit())
    except CorruptBatch as fault:
        header = read_header(batch)
        log.note_unreadable(header.base_offset, fault)
        return OffsetAndTimestamp(max(header.base_offset, start), header.max_timestamp)
