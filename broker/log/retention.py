"""Where a log begins: retention by time and size, and DeleteRecords.

The log start only moves up. First it is written down, then the store is trimmed behind it, at the
edge of an entry, then everybody is told. The last entry always stays: the live stream is never
empty once it was written to, and its end is the end of the log. Trimming waits until the store has
a snapshot of the fold that covers what goes, so that nothing is forgotten with the bytes.

A topic with remote.storage.enable is trimmed by its local retention, and never beyond what the
lake has (see archived.py): without an archiver it is not trimmed at all.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from weakref import WeakKeyDictionary, WeakSet

from broker.errors import ErrorCode, KafkaError
from broker.log.archived import Archived
from broker.log.partition import PartitionLog
from broker.log.reader import LogMoved, end_of
from broker.log.timestamps import (
    LogPosition,
    forget_positions,
    indexed_positions,
    position_before_time,
)
from broker.settings.kafka import TopicConfig
from broker.store.streams import Entry, Streams
from broker.store.topics import Change, TopicStore
from broker.wire.batch import headers

log = logging.getLogger("moldau.retention")

NO_LIMIT = -1
NO_TIMESTAMP = -1
TRIES = 5  # a log that is compacted just now is counted anew
UNARCHIVED_LINE_EVERY_MS = 600_000


class Retention:
    def __init__(self, streams: Streams, topics: TopicStore, archived: Archived) -> None:
        self._streams = streams
        self._topics = topics
        self._archived = archived
        self._unarchived_lines: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        # A crash or a fault of the store may leave something to trim or to tell.
        self._settled: WeakKeyDictionary[PartitionLog, tuple[int, int]] = WeakKeyDictionary()
        self._untold: WeakSet[PartitionLog] = WeakSet()

    async def delete_records(self, found: PartitionLog, offset: int) -> int:
        """Raise the log start to `offset` (-1: to the end); gives the new log start."""
        if offset == -1:
            offset = found.end
        if not 0 <= offset <= found.end:
            text = f"offset {offset} is not in 0..{found.end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        moved = False
        for _ in range(TRIES):
            if offset <= found.start:
                break
            generation = found.clean.generation
            try:
                edge = await self._edge_before(found, offset)
            except LogMoved:
                continue
            moved = await self._raise_start(found, offset, edge, generation)
        if offset > found.start:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the log is being compacted")
        await self.settle(found, moved=moved)
        return found.start

    async def enforce(self, found: PartitionLog, config: TopicConfig, now_ms: int) -> bool:
        """Apply retention.ms and retention.bytes; True when the log start moved."""
        moved = False
        if config.delete and found.start < found.end:
            kept_ms, kept_bytes = config.retention_ms, config.retention_bytes
            if config.remote_storage:
                kept_ms, kept_bytes = config.local_retention_ms, config.local_retention_bytes
            oldest = now_ms - kept_ms if kept_ms != NO_LIMIT else None
            surplus = found.size - kept_bytes if kept_bytes != NO_LIMIT else 0
            generation = found.clean.generation
            try:
                first = await self._first_kept(found, oldest, found.start_bytes + surplus)
                if config.remote_storage and first.offset > found.start:
                    first = await self._within_archived(found, first, now_ms)
            except LogMoved:
                return False  # somebody trims or compacts it: the next round will do
            if first.offset > found.start:
                log.info("%r: log start %d -> %d", found, found.start, first.offset)
                moved = await self._raise_start(found, first.offset, first, generation)
        await self.settle(found, moved=moved)
        return moved

    async def _within_archived(
        self, found: PartitionLog, first: LogPosition, now_ms: int
    ) -> LogPosition:
        """No further than the lake has it; the edge of an entry, as ever."""
        until = await self._archived.until(found.topic, found.partition)
        if until >= first.offset:
            return first
        last_line = self._unarchived_lines.get(found)
        if last_line is None or now_ms - last_line >= UNARCHIVED_LINE_EVERY_MS:
            self._unarchived_lines[found] = now_ms
            log.warning(
                "%r: local retention is over for offsets below %d, but the lake has them only below"
                " %d: they stay until they are archived; is `moldau pipeline archive` running?",
                found, first.offset, until,
            )  # fmt: skip
        if until <= found.start:
            return LogPosition(found.start, found.start_bytes)
        return await self._edge_before(found, until)

    async def _first_kept(
        self, found: PartitionLog, oldest_kept_ms: int | None, surplus_until: int
    ) -> LogPosition:
        """The first entry that neither time nor size removes.

        The index takes us near, entry by entry takes us there. Entries go as wholes: one is
        removed by time when its newest record is too old, by size when all of it is surplus. One
        without any timestamp goes by time when a later one does.
        """
        first = LogPosition(found.start, found.start_bytes)
        if surplus_until > first.size:
            async with aclosing(indexed_positions(self._streams, found)) as indexed:
                async for place in indexed:
                    if first.offset < place.offset and place.size <= surplus_until:
                        first = place
        if oldest_kept_ms is not None:
            first = max(first, await position_before_time(self._streams, found, oldest_kept_ms))
        position = first.size
        async with aclosing(found.scan(first.offset)) as entries:
            async for entry in entries:
                position += len(entry.blob)
                newest = _newest(entry)
                too_old = oldest_kept_ms is not None and NO_TIMESTAMP < newest < oldest_kept_ms
                if too_old or position <= surplus_until:
                    first = LogPosition(end_of(entry), position)
                elif newest > NO_TIMESTAMP or oldest_kept_ms is None:
                    break
        return first

    async def _edge_before(self, found: PartitionLog, offset: int) -> LogPosition:
        """The edge of the entry that contains `offset`."""
        edge = LogPosition(found.start, found.start_bytes)
        async with aclosing(indexed_positions(self._streams, found)) as indexed:
            async for place in indexed:
                if edge.offset < place.offset <= offset:
                    edge = place
        async with aclosing(found.scan(edge.offset)) as entries:
            async for entry in entries:
                end = end_of(entry)
                if end > offset:
                    break
                edge = LogPosition(end, edge.size + len(entry.blob))
        return edge

    async def _raise_start(
        self, found: PartitionLog, start: int, edge: LogPosition, generation: int
    ) -> bool:
        """False when the generation in which `edge` was found is no longer current."""
        raised = await self._streams.raise_start(found.key, start, edge.size, generation)
        await found.load_start()
        return raised

    async def settle(self, found: PartitionLog, *, moved: bool) -> None:
        """The log lies elsewhere (`moved`), or may have been left half trimmed: trim, tell all.

        Telling comes last, as a full store takes it only then. Readers who have not heard yet
        notice by themselves.
        """
        if moved:
            self._untold.add(found)
        if self._settled.get(found) == found.view:
            return
        view = found.view
        is_trimmed, removed = await self._trim(found)
        if removed or found in self._untold:
            await self._topics.announce(Change("start", found.topic, found.partition))
            self._untold.discard(found)
        if is_trimmed:
            self._settled[found] = view

    async def _trim(self, found: PartitionLog) -> tuple[bool, int]:
        """Free what lies before the log start, and in the live stream what is cleaned."""
        removed = 0
        target = max(found.start, found.clean.end)
        if target > 0 and (first := await self._live_edge(found, target)):
            if not await self._is_covered(found, first):
                return False, removed
            removed += await self._streams.trim(found.key, first)
            await forget_positions(self._streams, found.key, first)
        if found.clean.entries and found.start > 0:
            removed += await self._trim_clean(found)
        return True, removed

    async def _live_edge(self, found: PartitionLog, offset: int) -> int:
        entries = await self._streams.entries_at(found.key, offset, 1)
        return entries[0].base if entries else 0

    async def _is_covered(self, found: PartitionLog, offset: int) -> bool:
        """Is there a snapshot of the fold up to `offset` in the store, not just asked for?"""
        if await self._streams.snapshot_at(found.key) < offset:
            await found.save_snapshot()
            return await self._streams.snapshot_at(found.key) >= offset
        return True

    async def _trim_clean(self, found: PartitionLog) -> int:
        start, key = found.start, found.clean_key
        first = found.clean.end
        if start < first:
            entries = await self._streams.entries_at(key, start, 1)
            if not entries:
                return 0
            # The last one stays until all of them go: readers know by it that they saw everything.
            first = entries[0].base
            if end_of(entries[0]) <= start:
                first = min(start, found.clean.last)
        removed = await self._streams.trim(key, first)
        await forget_positions(self._streams, key, start)
        return removed


def _newest(entry: Entry) -> int:
    return max((header.max_timestamp for header in headers(entry.blob)), default=NO_TIMESTAMP)
