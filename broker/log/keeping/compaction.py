"""Compaction of a log while it is written to and read: which part, when, and how it is replaced.

What stays of a batch is decided in cleaning.py, a pass over the log is in cleaning_pass.py. The
last entry is never cleaned, like Kafka's active segment, but its keys count. Nor is anything from
the last stable offset on: what is part of an open transaction may still be aborted.

    take the lease, an empty generation, remove what crashed passes left
    forget the aborted transactions of the cleaned part, whose markers are gone from the store
    note keys, write the generation and its index
    make sure of a snapshot beyond the part that is replaced
    switch                                  before: the old log; from here on: the new one
    trim the live stream, announce, drop the old generation

A crash between any two steps leaves the log whole, and garbage that the next pass removes.
Producers never wait: a pass works for half a millisecond at a time and rests in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from weakref import WeakSet

from moldau.broker.errors import StoreFault
from moldau.broker.log.callbacks import await_callback
from moldau.broker.log.keeping.cleaning import AbortedBatches
from moldau.broker.log.keeping.cleaning_pass import LEASE_MS, CleaningPass, PassEnded, Plan
from moldau.broker.log.keeping.retention import Retention
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading.committed import CommittedReader
from moldau.broker.log.reading.reader import LogMoved, LogReader
from moldau.broker.log.reading.timestamps import LogPosition, position_before_time
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.store.cleaned import Cleaned
from moldau.broker.store.streams import Streams
from moldau.broker.wire.batch import find_batch, headers, read_header

logger = logging.getLogger("moldau.compaction")

CLEAR_UP_S = 2.0
GRACE_S = 2.0  # for readers of the old generation, which would have to start over
NO_LAG = (1 << 63) - 1


class Compaction:
    def __init__(self, streams: Streams, cleaned: Cleaned, retention: Retention) -> None:
        self._streams = streams
        self._cleaned = cleaned
        self._retention = retention
        self._lease_owner = os.urandom(8).hex().encode()
        self._tidied: WeakSet[LogReader] = WeakSet()

    # --- when ---

    async def plan(self, log: LogReader, config: TopicConfig, now_ms: int) -> Plan | None:
        """What there is to clean; None when a pass is not worth it yet."""
        cleaned = log.clean
        dirty = LogPosition(log.start, log.start_bytes)
        kept = 0
        expired_tombstones = False
        if log.start < cleaned.end:
            dirty = LogPosition(cleaned.end, cleaned.end_bytes)
            kept = max(cleaned.end_bytes - log.start_bytes, 0)
            expired_tombstones = 0 <= cleaned.tombstones_until <= now_ms
        at_most = _ratio(log.state.transactions.stable_size(log.state.size) - dirty.size, kept)
        is_limited = config.max_compaction_lag_ms < NO_LAG
        if not (at_most > config.min_cleanable_dirty_ratio or is_limited or expired_tombstones):
            return None
        try:
            end, note_to = await self._cleanable_end(log, dirty, config, now_ms)
            ratio = _ratio(end.size - dirty.size, kept)
            due = ratio > config.min_cleanable_dirty_ratio or expired_tombstones
            if not due and is_limited and end.offset > dirty.offset:
                written = await self._first_timestamp(log, dirty.offset)
                due = 0 < written < now_ms - config.max_compaction_lag_ms
        except LogMoved:
            return None
        return Plan(dirty, end.offset, note_to, ratio) if due else None

    async def _cleanable_end(
        self, log: LogReader, dirty: LogPosition, config: TopicConfig, now_ms: int
    ) -> tuple[LogPosition, int]:
        """Where a pass has to end, and up to where keys count."""
        stable = await self._stable_position(log, dirty)
        end, note_to = await self._closed_end(log, dirty, config, now_ms)
        # Nor beyond the known end: whether later appends are committed is not known.
        note_to = max(min(note_to, log.state.transactions.stable_end(log.state.end)), dirty.offset)
        return min(end, stable), note_to

    async def _stable_position(self, log: LogReader, dirty: LogPosition) -> LogPosition:
        """The last entry's edge at or below the last stable offset."""
        state = log.state
        stable = state.transactions.stable_end(state.end)
        if stable == state.end:
            return LogPosition(state.end, state.size)
        size = state.transactions.stable_size(state.size)
        if stable > dirty.offset:
            entries = await self._streams.entries_at(log.key, stable, 1)
            if entries and entries[0].base <= stable:
                first = entries[0]
                return LogPosition(first.base, size - find_batch(first.blob, stable))
        return dirty

    async def _closed_end(
        self, log: LogReader, dirty: LogPosition, config: TopicConfig, now_ms: int
    ) -> tuple[LogPosition, int]:
        """The end of a pass in a log without open transactions."""
        last = await self._streams.last_entry(log.key)
        if last is None or last.base <= dirty.offset:
            return dirty, dirty.offset
        whole = LogPosition(last.base, max(log.state.size - len(last.blob), dirty.size))
        if config.min_compaction_lag_ms <= 0:
            return whole, last.end
        newest_cleaned = now_ms - config.min_compaction_lag_ms
        end = max(dirty, await position_before_time(self._streams, log, newest_cleaned + 1))
        async with aclosing(log.scan(end.offset)) as entries:
            async for entry in entries:
                newest = max(header.max_timestamp for header in headers(entry.blob))
                if entry.base >= last.base or newest > newest_cleaned:
                    break
                following = log.epochs.skip_gap(entry.end)
                end = LogPosition(following, end.size + len(entry.blob))
        return (whole, last.end) if end.offset >= last.base else (end, end.offset)

    async def _first_timestamp(self, log: LogReader, offset: int) -> int:
        async with aclosing(log.scan(offset)) as entries:
            async for entry in entries:
                return read_header(entry.blob).base_timestamp
        return -1

    # --- doing it ---

    async def compact(self, partition: PartitionLog, config: TopicConfig, now_ms: int) -> bool:
        """One pass, if it is due and no other worker runs one; True when something was cleaned."""
        log = partition.reader
        async with self._lease(log) as is_ours:
            if not is_ours:
                return False
            await log.load_start()
            layout = log.layout
            plan = await self.plan(log, config, now_ms)
            if plan is None:
                return False
            try:
                aborted = AbortedBatches(await self._find_aborted(log, plan))
                generation = await self._cleaned.begin(log.key)
                if not generation:
                    raise PassEnded("the topic was deleted")
                work = CleaningPass(
                    self._cleaned, log, layout, generation, self._lease_owner, aborted
                )
                return await self._compact(work, partition, config, now_ms, plan)
            except (LogMoved, PassEnded) as reason:
                logger.info("compaction of %r is put off: %s", log, reason)
                return False

    async def _find_aborted(self, log: LogReader, plan: Plan) -> list[AbortedTransaction]:
        """The aborted transactions in the range of a pass. The cleaned part has none."""
        reader, end = CommittedReader(log, self._streams), max(plan.end, plan.note_to)
        aborted: list[AbortedTransaction] | None
        aborted = await await_callback(partial(reader.find_aborted, log.start, end))
        if aborted is None:
            raise LogMoved
        return aborted

    async def tidy(self, log: LogReader) -> None:
        """Remove what a crash may have left, when a log is first seen."""
        if log in self._tidied:
            return
        async with self._lease(log) as is_ours:
            if is_ours:
                await log.load_start()
                await self._cleaned.drop_leftovers(log.key, log.clean)
                self._tidied.add(log)

    @contextlib.asynccontextmanager
    async def _lease(self, log: LogReader) -> AsyncIterator[bool]:
        is_ours = await self._cleaned.take_lease(log.key, self._lease_owner, LEASE_MS)
        try:
            yield is_ours
        finally:
            if is_ours:
                async with _clearing_up():  # it expires
                    await self._cleaned.release_lease(log.key, self._lease_owner)

    async def _compact(
        self,
        work: CleaningPass,
        partition: PartitionLog,
        config: TopicConfig,
        now_ms: int,
        plan: Plan,
    ) -> bool:
        log = partition.reader
        began = time.monotonic()
        size, old, generation = log.size, work.old, work.generation
        try:
            await self._cleaned.drop_leftovers(log.key, old, generation)
            if await self._retention.trim_and_announce(partition, moved=False):
                # Who still reads what the last pass replaced notices that it is gone.
                await self._streams.drop_aborted(log.key, "-inf", f"({old.end}")
            keys, end = await work.note(plan)
            part, start_bytes = await work.write(keys, end, config, now_ms)
            await self._cover(partition, end)
        except BaseException:
            async with _clearing_up():  # the next pass removes it
                await self._cleaned.drop(log.key, generation)
            raise
        # If the reply is lost the generation may be current: the next pass finds out.
        if not await self._cleaned.switch(log.key, old, work.start, part, start_bytes):
            await self._cleaned.drop(log.key, generation)
            raise PassEnded("the log start moved, there is no snapshot, or entries were lost")
        await log.load_start()
        await self._retention.trim_and_announce(partition, moved=True)
        if old.generation:
            partition.spawn(self._drop_later(log.key, old.generation))
        logger.info(
            "%r compacted up to offset %d: %d -> %d bytes in %.1f s",
            *(log, end, size, log.size, time.monotonic() - began),
        )
        return True

    async def _cover(self, partition: PartitionLog, end: int) -> None:
        """Make sure that a snapshot covers the log up to `end`: its entries will be gone."""
        if partition.reader.end < end:
            await partition.current()
        if await self._streams.snapshot_at(partition.reader.key) < end:
            await partition.save_snapshot()  # if this fails, so does the switch

    async def _drop_later(self, key: bytes, generation: int) -> None:
        await asyncio.sleep(GRACE_S)
        try:
            await self._cleaned.drop(key, generation)
        except StoreFault as fault:
            logger.warning("an old generation is left to the next pass: %s", fault)


@contextlib.asynccontextmanager
async def _clearing_up() -> AsyncIterator[None]:
    """Try to clean up even when the worker stops or the store fails."""
    with contextlib.suppress(StoreFault, TimeoutError):
        async with asyncio.timeout(CLEAR_UP_S):
            yield


def _ratio(dirty: int, clean: int) -> float:
    return dirty / (dirty + clean) if dirty > 0 else 0.0
