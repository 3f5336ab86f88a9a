"""Where a log begins: retention by time and size, and DeleteRecords.

The log start only moves up. First it is made known, then the store is trimmed behind it, at the
edge of an entry; the last entry always stays, because its end is the end of the log. Trimming
waits for a snapshot of the fold beyond it, so that nothing is forgotten with the bytes.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from broker.configs import TopicConfig
from broker.errors import ErrorCode, KafkaError
from broker.log.partition import PartitionLog
from broker.store import keys
from broker.store.streams import Entry, Streams
from broker.store.topics import Change, TopicStore
from broker.wire.batch import headers

log = logging.getLogger("moldau.retention")

SCAN_COUNT = 32
NO_LIMIT = -1


class Place(NamedTuple):
    """An entry's edge: its base offset and the bytes ever appended before it."""

    offset: int
    size: int


class Retention:
    def __init__(self, streams: Streams, topics: TopicStore) -> None:
        self._streams = streams
        self._topics = topics

    async def delete_records(self, found: PartitionLog, offset: int) -> int:
        """Raise the log start to `offset` (-1: to the end); gives the new log start."""
        if offset == -1:
            offset = found.end
        if not 0 <= offset <= found.end:
            text = f"offset {offset} is not in 0..{found.end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if offset > found.start:
            await self._raise_start(found, offset, await self._edge_before(found, offset))
        return found.start

    async def enforce(self, found: PartitionLog, config: TopicConfig, now_ms: int) -> bool:
        """Apply retention.ms and retention.bytes; True when the log start moved."""
        if not config.delete or found.start >= found.end:
            return False
        oldest_kept = now_ms - config.retention_ms if config.retention_ms != NO_LIMIT else None
        surplus = found.size - config.retention_bytes if config.retention_bytes != NO_LIMIT else 0
        first_kept = await self._first_kept(found, oldest_kept, found.start_bytes + surplus)
        if first_kept.offset <= found.start:
            return False
        log.info("%r: log start %d -> %d", found, found.start, first_kept.offset)
        await self._raise_start(found, first_kept.offset, first_kept)
        return True

    async def _first_kept(
        self, found: PartitionLog, oldest_kept_ms: int | None, surplus_until: int
    ) -> Place:
        """The first entry that neither time nor size removes.

        The index takes us near, entry by entry takes us there. Entries go as wholes: one is
        removed by time when its newest record is too old, by size when all of it is surplus.
        """
        place = Place(found.start, found.start_bytes)
        for offset, size in await self._streams.index_points(found.key):
            if offset > place.offset and size <= surplus_until:
                place = Place(offset, size)
        if oldest_kept_ms is not None:
            point = await self._streams.index_before(found.key, oldest_kept_ms)
            if point is not None and point[0] > place.offset:
                place = Place(*point)
        while place.offset < found.end:
            key = found.stream_for(place.offset)
            entries = await self._streams.entries_at(key, place.offset, SCAN_COUNT)
            if not entries:
                return place
            for entry in entries:
                end, newest = _end_and_newest(entry)
                too_old = oldest_kept_ms is not None and newest < oldest_kept_ms
                after = place.size + len(entry.blob)
                if not too_old and after > surplus_until:
                    return place
                place = Place(end, after)
        return place

    async def _edge_before(self, found: PartitionLog, offset: int) -> Place:
        """The edge of the entry that contains `offset`, with the bytes before it."""
        place = Place(found.start, found.start_bytes)
        for point, size in await self._streams.index_points(found.key):
            if place.offset < point <= offset:
                place = Place(point, size)
        while place.offset < offset:
            key = found.stream_for(place.offset)
            entries = await self._streams.entries_at(key, place.offset, SCAN_COUNT)
            if not entries:
                break
            for entry in entries:
                end, _ = _end_and_newest(entry)
                if end > offset:
                    return place
                place = Place(end, place.size + len(entry.blob))
        return place

    async def _raise_start(self, found: PartitionLog, start: int, edge: Place) -> None:
        await self._streams.raise_start(found.key, start, edge.size)
        await found.load_start()
        await self._topics.announce(Change("start", found.topic, found.partition))
        await self._trim(found, edge.offset)

    async def _trim(self, found: PartitionLog, first_kept: int) -> None:
        last = await self._streams.last_entry(found.key)
        if last is None:
            return
        await found.save_snapshot()
        await self._streams.trim(found.key, min(first_kept, last.base))
        points = await self._streams.index_points(found.key)
        await self._streams.drop_index(
            found.key, [point for point in points if point[0] < first_kept]
        )
        if found.clean_generation:
            clean = keys.clean(found.key, found.clean_generation)
            await self._streams.trim(clean, first_kept)


def _end_and_newest(entry: Entry) -> tuple[int, int]:
    end, newest = entry.base, -1
    for header in headers(entry.blob):
        end = header.next_offset
        newest = max(newest, header.max_timestamp)
    return end, newest
