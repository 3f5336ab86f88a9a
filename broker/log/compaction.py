"""Compaction of a log while it is written to and read: which part, when, and how it is replaced.

What stays of a batch is decided in cleaning.py. Here a pass reads the log twice: what is new
since the last pass for its keys, then everything up to there to write what is left into a new
generation (store/cleaned.py). Only the keys' digests are in memory. The last entry is never
cleaned, like Kafka's active segment, but its keys count.

    take the lease, an empty generation, remove what crashed passes left
    note keys, write the generation and its index
    make sure of a snapshot of the fold beyond the part that is replaced
    switch                                  before: the old log; from here on: the new one
    trim the live stream, announce, drop the old generation

A crash between any two steps leaves the log whole, and garbage that the next pass removes.
Producers never wait: a pass works in slices of a millisecond or two and rests between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from broker.configs import TopicConfig
from broker.errors import MoldauError, StoreFault
from broker.log.cleaning import KeyMap, clean_in_steps
from broker.log.partition import PartitionLog
from broker.log.reading import LogMoved, end_of
from broker.log.retention import Retention
from broker.log.times import DECODED_LIMIT, Place, place_before_time
from broker.store.cleaned import Cleaned, CleanPart
from broker.store.streams import Entry, Streams
from broker.wire.batch import (
    DELETE_HORIZON,
    Buffer,
    CorruptBatch,
    headers,
    read_header,
    split_batches,
)

log = logging.getLogger("moldau.compaction")

LEASE_MS = 30_000
RENEW_S = 8.0
GRACE_S = 2.0  # for readers of the old generation; without it they would have to begin again
ENTRY_SIZE = 1 << 18  # small batches are gathered: fewer entries, and no fetch reads far too much
INDEX_EVERY = 1 << 20
KEYS_AT_ONCE = (128 << 20) // 36  # Kafka's log.cleaner.dedupe.buffer.size over a key's share
SLICE_S = 0.0015
NO_LAG = (1 << 63) - 1

T = TypeVar("T")


class PassEnded(MoldauError):
    """The pass cannot be finished: its lease or its generation is gone. Nothing has changed."""


class Plan(NamedTuple):
    """What a pass over a log would clean."""

    dirty: Place  # from here on it was never cleaned
    end: int  # to here it can be
    note_to: int  # keys count to here
    ratio: float  # how much of what a pass reads is dirty


class Compaction:
    def __init__(self, streams: Streams, cleaned: Cleaned, retention: Retention) -> None:
        self._streams = streams
        self._cleaned = cleaned
        self._retention = retention
        self._token = os.urandom(8).hex().encode()

    # --- when ---

    async def plan(self, found: PartitionLog, config: TopicConfig, now_ms: int) -> Plan | None:
        """What there is to clean, None when it is not worth it yet."""
        cleaned = found.clean
        dirty = Place(found.start, found.start_bytes)
        kept = 0
        expired_tombstones = False
        if found.start < cleaned.end:
            dirty = Place(cleaned.end, cleaned.end_bytes)
            kept = max(cleaned.end_bytes - found.start_bytes, 0)
            expired_tombstones = 0 <= cleaned.tombstones_until <= now_ms
        at_most = _ratio(found.state.size - dirty.size, kept)
        is_limited = config.max_compaction_lag_ms < NO_LAG
        if not (at_most > config.min_cleanable_dirty_ratio or is_limited or expired_tombstones):
            return None
        try:
            end, note_to = await self._cleanable_end(found, dirty, config, now_ms)
            ratio = _ratio(end.size - dirty.size, kept)
            due = ratio > config.min_cleanable_dirty_ratio or expired_tombstones
            if not due and is_limited and end.offset > dirty.offset:
                written = await self._first_timestamp(found, dirty.offset)
                due = 0 < written < now_ms - config.max_compaction_lag_ms
        except LogMoved:
            return None
        return Plan(dirty, end.offset, note_to, ratio) if due else None

    async def _cleanable_end(
        self, found: PartitionLog, dirty: Place, config: TopicConfig, now_ms: int
    ) -> tuple[Place, int]:
        """Where a pass has to end, and up to where keys count."""
        last = await self._streams.last_entry(found.key)
        if last is None or last.base <= dirty.offset:
            return dirty, dirty.offset
        whole = Place(last.base, max(found.state.size - len(last.blob), dirty.size))
        if config.min_compaction_lag_ms <= 0:
            return whole, end_of(last)
        newest_cleaned = now_ms - config.min_compaction_lag_ms
        end = max(dirty, await place_before_time(self._streams, found, newest_cleaned + 1))
        async with aclosing(found.scan(end.offset)) as entries:
            async for entry in entries:
                newest = max(header.max_timestamp for header in headers(entry.blob))
                if entry.base >= last.base or newest > newest_cleaned:
                    break
                end = Place(end_of(entry), end.size + len(entry.blob))
        return (whole, end_of(last)) if end.offset >= last.base else (end, end.offset)

    async def _first_timestamp(self, found: PartitionLog, offset: int) -> int:
        async with aclosing(found.scan(offset)) as entries:
            async for entry in entries:
                return read_header(entry.blob).base_timestamp
        return -1

    # --- doing it ---

    async def compact(self, found: PartitionLog, config: TopicConfig, now_ms: int) -> bool:
        """One pass, if it is due and nobody else is at it; True when something was cleaned."""
        if not await self._cleaned.take_lease(found.key, self._token, LEASE_MS):
            return False
        try:
            await found.load_start()
            view = found.view
            plan = await self.plan(found, config, now_ms)
            if plan is None:
                return False
            generation = await self._cleaned.begin(found.key)
            if not generation:
                raise PassEnded("the topic was deleted")
            work = _Pass(self._cleaned, found, view, generation, self._token)
            return await self._compact(work, found, config, now_ms, plan)
        except (LogMoved, PassEnded) as reason:
            log.info("compaction of %r is put off: %s", found, reason)
            return False
        finally:
            with contextlib.suppress(StoreFault):  # it expires
                await self._cleaned.release_lease(found.key, self._token)

    async def _compact(
        self, work: _Pass, found: PartitionLog, config: TopicConfig, now_ms: int, plan: Plan
    ) -> bool:
        began = time.monotonic()
        size, old, generation = found.size, work.old, work.generation
        try:
            await self._cleaned.drop_all_but(found.key, old, generation)
            keys, end = await work.note(plan)
            part, start_bytes = await work.write(keys, end, config, now_ms)
            await self._cover(found, end)
        except BaseException:
            with contextlib.suppress(StoreFault):  # the next pass removes it
                await self._cleaned.drop(found.key, generation)
            raise
        # Should its answer be lost the generation may be current: it stays for others to judge.
        if not await self._cleaned.switch(found.key, old, work.start, part, start_bytes):
            await self._cleaned.drop(found.key, generation)
            raise PassEnded("the log start moved, or there is no snapshot")
        await found.load_start()
        await self._retention.settle(found, moved=True)
        if old.generation:
            found.host.spawn(self._drop_later(found.key, old.generation))
        log.info(
            "%r compacted up to offset %d: %d -> %d bytes in %.1f s",
            *(found, end, size, found.size, time.monotonic() - began),
        )
        return True

    async def _cover(self, found: PartitionLog, end: int) -> None:
        """The fold up to `end` must be kept, as its entries will not be."""
        if found.end < end:
            await found.current()
        if await self._streams.snapshot_at(found.key) < end:
            await found.save_snapshot()  # should this fail, the switch does

    async def _drop_later(self, key: bytes, generation: int) -> None:
        await asyncio.sleep(GRACE_S)
        try:
            await self._cleaned.drop(key, generation)
        except StoreFault as fault:
            log.warning("an old generation is left to the next pass: %s", fault)


def _ratio(dirty: int, clean: int) -> float:
    return dirty / (dirty + clean) if dirty > 0 else 0.0


class _Pass:
    """One pass over a log: reads, cleans and writes, a little at a time."""

    def __init__(
        self,
        cleaned: Cleaned,
        found: PartitionLog,
        view: tuple[int, int],
        generation: int,
        token: bytes,
    ) -> None:
        self._cleaned = cleaned
        self._found = found
        self._view = view
        self.generation = generation
        self._token = token
        self._renewed = time.monotonic()
        self._slice_began = time.perf_counter()
        # The log as it is when the pass begins: the switch is refused when any of it has moved.
        self.start = found.start
        self._start_bytes = found.start_bytes
        self.old = found.clean

    def _scan(self, offset: int) -> AsyncGenerator[Entry, None]:
        if self._found.view != self._view:
            raise LogMoved("the log start moved")
        return self._found.scan(offset)

    async def note(self, plan: Plan) -> tuple[KeyMap, int]:
        """The newest offsets of the dirty keys, and where the pass ends if they do not all fit."""
        keys = KeyMap(min(plan.note_to - plan.dirty.offset, KEYS_AT_ONCE))
        end = plan.end
        async with aclosing(self._scan(plan.dirty.offset)) as entries:
            async for entry in entries:
                if entry.base >= plan.note_to:
                    break
                if await self._note_entry(keys, entry):
                    continue
                if entry.base <= plan.dirty.offset:
                    # Not even the first one fits: a pass has to get somewhere.
                    keys = KeyMap(end_of(entry) - entry.base)
                    await self._note_entry(keys, entry)
                else:
                    end = min(end, entry.base)
                    break
        keys.last_offset = max(keys.last_offset, end - 1)
        return keys, end

    async def _note_entry(self, keys: KeyMap, entry: Entry) -> bool:
        for batch in split_batches(entry.blob):
            try:
                if not await self._in_steps(keys.note_in_steps(batch, DECODED_LIMIT)):
                    return False
            except CorruptBatch as fault:
                log.warning("%r: a batch stays as it is: %s", self._found, fault)
        return True

    async def write(
        self, keys: KeyMap, end: int, config: TopicConfig, now_ms: int
    ) -> tuple[CleanPart, int]:
        """Write what stays of everything below `end`: the new part, and what is gone by it."""
        writer = _Writer(self._cleaned, self._found.key, self.generation, now_ms)
        read = 0
        async with aclosing(self._scan(self.start)) as entries:
            async for entry in entries:
                if entry.base >= end:
                    break
                read += len(entry.blob)
                for batch in split_batches(entry.blob):
                    if read_header(batch).next_offset <= self.start:
                        continue
                    kept = await self._clean(batch, keys, config, now_ms)
                    if kept is not None:
                        await writer.add(kept)
        end_bytes = self._start_bytes + read
        return await writer.finish(end, end_bytes, self.old.generation)

    async def _clean(
        self, batch: memoryview, keys: KeyMap, config: TopicConfig, now_ms: int
    ) -> Buffer | None:
        try:
            return await self._in_steps(
                clean_in_steps(
                    batch,
                    keys,
                    now_ms=now_ms,
                    delete_retention_ms=config.delete_retention_ms,
                    limit=DECODED_LIMIT,
                    codec=config.codec,
                    level=config.codec_level,
                )
            )
        except CorruptBatch:  # said when its keys were noted
            return batch

    async def _in_steps(self, steps: Generator[None, None, T]) -> T:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if time.perf_counter() - self._slice_began >= SLICE_S:
                await self._rest()

    async def _rest(self) -> None:
        """Let the worker do what it is there for; longer when it has much to do."""
        rested = time.perf_counter()
        await asyncio.sleep(0)
        await asyncio.sleep(max(time.perf_counter() - rested, SLICE_S))
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            if not await self._cleaned.renew_lease(self._found.key, self._token, LEASE_MS):
                raise PassEnded("the lease is lost")
        self._slice_began = time.perf_counter()


class _Writer:
    """Gathers batches into the entries of a generation."""

    def __init__(self, cleaned: Cleaned, key: bytes, generation: int, now_ms: int) -> None:
        self._cleaned = cleaned
        self._key = key
        self._generation = generation
        self._now_ms = now_ms
        self._parts: list[Buffer] = []
        self._size = 0
        self._written = 0
        self._entries = 0
        self._base = self._last = -1
        self._newest = self._newest_base = -1
        self._newest_written = -1
        self._tombstones_until = -1
        self._points: list[tuple[int, int, int]] = []
        self._indexed = 0

    async def add(self, batch: Buffer) -> None:
        header = read_header(batch)
        if self._parts and self._size + len(batch) > ENTRY_SIZE:
            await self._flush()
        if not self._parts:
            self._base = header.base_offset
        self._parts.append(batch)
        self._size += len(batch)
        if header.max_timestamp > self._newest:
            self._newest, self._newest_base = header.max_timestamp, header.base_offset
        if header.attributes & DELETE_HORIZON and header.base_timestamp >= self._now_ms:
            self._tombstones_until = max(self._tombstones_until, header.base_timestamp)

    async def _flush(self) -> None:
        if self._written - self._indexed >= INDEX_EVERY:
            self._points.append((self._newest_written, self._base, self._written))
            self._indexed = self._written
        if not await self._cleaned.append(
            self._key, self._generation, self._base, self._parts, self._size
        ):
            raise PassEnded("its generation was removed")
        self._written += self._size
        self._entries += 1
        self._last = self._base
        self._newest_written = self._newest
        self._parts, self._size = [], 0

    async def finish(self, end: int, end_bytes: int, previous: int) -> tuple[CleanPart, int]:
        """The part, and the bytes of the log that are gone once it is in place."""
        if self._parts:
            await self._flush()
        start_bytes = end_bytes - self._written
        points = [(newest, base, start_bytes + at) for newest, base, at in self._points]
        await self._cleaned.index(self._key, self._generation, points)
        part = CleanPart(
            generation=self._generation,
            end=end,
            end_bytes=end_bytes,
            last=self._last,
            entries=self._entries,
            max_timestamp=self._newest,
            max_timestamp_base=self._newest_base,
            tombstones_until=self._tombstones_until,
            previous=previous,
        )
        return part, start_bytes
