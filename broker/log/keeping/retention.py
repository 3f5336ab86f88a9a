"""The log start: retention by time and size, and DeleteRecords.

The log start only moves up. First it is saved, then the stream is trimmed up to it, in whole
entries, then all workers are notified. The last entry always stays: the live stream is never empty
once it was written to, and its end is the end of the log. Trimming waits for a snapshot that
covers the removed entries, so that the state of producers is not lost with the entries. It may
move into an open transaction, whose last part is read or hidden later all the same.

A topic with remote.storage.enable is trimmed by its local retention, and never beyond what
the lake has (see archived.py): without an archiver it is not trimmed at all.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.keeping.archived import Archived
from moldau.broker.log.reading.reader import Layout, LogMoved, LogReader
from moldau.broker.log.reading.timestamps import (
    LogPosition,
    forget_positions,
    indexed_positions,
    position_before_time,
)
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.streams import Entry, Streams
from moldau.broker.store.topics import Change, TopicStore
from moldau.broker.wire.batch import headers

if TYPE_CHECKING:
    from moldau.broker.log.partition import PartitionLog

logger = logging.getLogger("moldau.retention")

NO_LIMIT = -1
NO_TIMESTAMP = -1
TRIES = 5  # the positions change when the log is compacted meanwhile
UNARCHIVED_LINE_EVERY_MS = 600_000


class Retention:
    def __init__(self, streams: Streams, topics: TopicStore, archived: Archived) -> None:
        self._streams = streams
        self._topics = topics
        self._archived = archived
        self._unarchived_lines: WeakKeyDictionary[LogReader, int] = WeakKeyDictionary()
        # A crash or a fault of the store may leave something to trim or to announce.
        self._trimmed: WeakKeyDictionary[LogReader, Layout] = WeakKeyDictionary()
        self._unannounced: WeakSet[LogReader] = WeakSet()

    async def delete_before(self, partition: PartitionLog, offset: int) -> int:
        """Raise the log start to `offset`; returns the new log start."""
        log = partition.reader
        moved = False
        for _ in range(TRIES):
            if offset <= log.start:
                break
            generation = log.clean.generation
            try:
                edge = await self._edge_before(log, offset)
            except LogMoved:
                continue
            moved = await self._raise_start(log, offset, edge, generation)
        if offset > log.start:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the log is being compacted")
        await self.trim_and_announce(partition, moved=moved)
        return log.start

    async def enforce(self, partition: PartitionLog, config: TopicConfig, now_ms: int) -> bool:
        """Apply retention.ms and retention.bytes; True when the log start moved."""
        log = partition.reader
        moved = False
        if config.delete and log.start < log.end:
            kept_ms, kept_bytes = config.retention_ms, config.retention_bytes
            if config.remote_storage:
                kept_ms, kept_bytes = config.local_retention_ms, config.local_retention_bytes
            oldest = now_ms - kept_ms if kept_ms != NO_LIMIT else None
            surplus = log.size - kept_bytes if kept_bytes != NO_LIMIT else 0
            generation = log.clean.generation
            try:
                first = await self._first_kept(log, oldest, log.start_bytes + surplus)
                if config.remote_storage and first.offset > log.start:
                    first = await self._within_archived(log, first, now_ms)
            except LogMoved:
                return False  # trimmed or compacted meanwhile: left to the next round
            if first.offset > log.start:
                logger.info("%r: log start %d -> %d", log, log.start, first.offset)
                moved = await self._raise_start(log, first.offset, first, generation)
        await self.trim_and_announce(partition, moved=moved)
        return moved

    async def _within_archived(
        self, log: LogReader, first: LogPosition, now_ms: int
    ) -> LogPosition:
        """No further than the lake has it; at the edge of an entry, as always."""
        until = await self._archived.until(log.topic, log.partition)
        if until >= first.offset:
            return first
        last_line = self._unarchived_lines.get(log)
        if last_line is None or now_ms - last_line >= UNARCHIVED_LINE_EVERY_MS:
            self._unarchived_lines[log] = now_ms
            logger.warning(
                "%r: local retention is over for offsets below %d, but the lake has them only below"
                " %d: they stay until they are archived; is `moldau pipeline archive` running?",
                log, first.offset, until,
            )  # fmt: skip
        if until <= log.start:
            return LogPosition(log.start, log.start_bytes)
        return await self._edge_before(log, until)

    async def _first_kept(
        self, log: LogReader, oldest_kept_ms: int | None, surplus_until: int
    ) -> LogPosition:
        """The first entry that neither time nor size removes.

        The index leads near it, a scan to the entry itself. Only whole entries are removed: one
        goes by time when its newest record is too old, by size when all of it is surplus. One
        without any timestamp goes by time when a later one does.
        """
        first = LogPosition(log.start, log.start_bytes)
        if surplus_until > first.size:
            async with aclosing(indexed_positions(self._streams, log)) as indexed:
                async for place in indexed:
                    if first.offset < place.offset and place.size <= surplus_until:
                        first = place
        if oldest_kept_ms is not None:
            first = max(first, await position_before_time(self._streams, log, oldest_kept_ms))
        position = first.size
        async with aclosing(log.scan(first.offset)) as entries:
            async for entry in entries:
                position += len(entry.blob)
                newest = _newest(entry)
                too_old = oldest_kept_ms is not None and NO_TIMESTAMP < newest < oldest_kept_ms
                if too_old or position <= surplus_until:
                    # At a gap, its beginning: a consumer that has read up to there stays in range.
                    first = LogPosition(entry.end, position)
                elif newest > NO_TIMESTAMP or oldest_kept_ms is None:
                    break
        return first

    async def _edge_before(self, log: LogReader, offset: int) -> LogPosition:
        """The edge of the entry that contains `offset`."""
        edge = LogPosition(log.start, log.start_bytes)
        async with aclosing(indexed_positions(self._streams, log)) as indexed:
            async for place in indexed:
                if edge.offset < place.offset <= offset:
                    edge = place
        async with aclosing(log.scan(edge.offset)) as entries:
            async for entry in entries:
                end = entry.end
                if end > offset:
                    break
                edge = LogPosition(end, edge.size + len(entry.blob))
        return edge

    async def _raise_start(
        self, log: LogReader, start: int, edge: LogPosition, generation: int
    ) -> bool:
        """False when the generation in which `edge` was found is no longer current."""
        raised = await self._streams.raise_start(log.key, start, edge.size, generation)
        await log.load_start()
        return raised

    async def trim_and_announce(self, partition: PartitionLog, *, moved: bool) -> bool:
        """The log start moved, or an earlier trim was cut short: trim, then notify all workers.

        The notice comes last, as a full store accepts it only then. Readers that have not got it
        yet notice by themselves. False when a part of it is left for later.
        """
        log = partition.reader
        if moved:
            self._unannounced.add(log)
        if self._trimmed.get(log) == log.layout:
            return True
        layout = log.layout
        is_trimmed, removed = await self._trim(partition)
        if removed or log in self._unannounced:
            await self._topics.announce(Change("start", log.topic, log.partition))
            self._unannounced.discard(log)
        if is_trimmed:
            self._trimmed[log] = layout
        return is_trimmed

    async def _trim(self, partition: PartitionLog) -> tuple[bool, int]:
        """Remove the entries before the log start, and the cleaned ones from the live stream."""
        log, removed = partition.reader, 0
        target = log.epochs.skip_gap(max(log.start, log.clean.end))
        if target > 0 and (first := await self._live_edge(log, target)):
            if not await self._is_covered(partition, first):
                return False, removed
            removed += await self._streams.trim(log.key, first)
            await forget_positions(self._streams, log.key, first)
        if log.clean.entries and log.start > 0:
            removed += await self._trim_clean(log)
        known, kept = log.epochs, log.epochs.since(log.start)
        if kept is not known:
            await self._streams.shorten_epochs(log.key, known.text, kept.text)
            log.epochs = kept
        if log.start > 0:
            await self._streams.drop_aborted(log.key, "-inf", f"({log.start}")
        return True, removed

    async def _live_edge(self, log: LogReader, offset: int) -> int:
        entries = await self._streams.entries_at(log.key, offset, 1)
        return entries[0].base if entries else 0

    async def _is_covered(self, partition: PartitionLog, offset: int) -> bool:
        """Does the store have a snapshot up to `offset`? Saves one if not."""
        if await self._streams.snapshot_at(partition.reader.key) < offset:
            await partition.save_snapshot()
            return await self._streams.snapshot_at(partition.reader.key) >= offset
        return True

    async def _trim_clean(self, log: LogReader) -> int:
        start, key = log.start, log.clean_key
        first = log.clean.end
        if start < first:
            entries = await self._streams.entries_at(key, start, 1)
            if not entries:
                return 0
            # The last one stays until all of them go: it shows readers that nothing is missing.
            first = entries[0].base
            if entries[0].end <= start:
                first = min(start, log.clean.last)
        removed = await self._streams.trim(key, first)
        await forget_positions(self._streams, key, start)
        return removed


def _newest(entry: Entry) -> int:
    return max((header.max_timestamp for header in headers(entry.blob)), default=NO_TIMESTAMP)
