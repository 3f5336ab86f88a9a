"""One pass of compaction over a log: what is read, what is written, how fast.

It reads the log twice: what is new since the last pass for its keys, then everything up to there,
to write what cleaning.py leaves of it into a new generation (store/cleaned.py). Only the keys'
digests are in memory. Whether and when to run a pass, and how the generation replaces the old one,
is decided in compaction.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from moldau.broker.errors import MoldauError
from moldau.broker.log.keeping.cleaning import AbortedBatches, KeyMap, clean
from moldau.broker.log.reading.reader import Layout, LogMoved, LogReader
from moldau.broker.log.reading.timestamps import LogPosition
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.cleaned import Cleaned
from moldau.broker.store.streams import CleanPart, Entry
from moldau.broker.wire.batch import (
    DELETE_HORIZON,
    Buffer,
    CorruptBatch,
    headers,
    read_header,
    split_batches,
)

LEASE_MS = 30_000
RENEW_S = 8.0
ENTRY_SIZE = 1 << 18  # small batches are gathered: fewer entries, and no fetch reads far too much
INDEX_EVERY = 1 << 20
KEYS_AT_ONCE = (128 << 20) // 36  # Kafka's log.cleaner.dedupe.buffer.size over a key's share
# A pass works for half a millisecond at a time (compressing a large batch takes longer) and rests
# for three. The longer it takes the less it rests, down to half of the time: otherwise a log
# that is written to faster than it is cleaned would grow without bound.
SLICE_S = 0.0005
LONGEST_REST_S = 0.003
SHORTEST_REST_S = 0.0005
HURRY_AFTER_S = 30.0

T = TypeVar("T")


class PassEnded(MoldauError):
    """The pass cannot be finished: its lease or its generation is gone. Nothing has changed."""


class Plan(NamedTuple):
    """What a pass over a log would clean."""

    dirty: LogPosition  # never cleaned from here on
    end: int  # can be cleaned up to here
    note_to: int  # keys count up to here, the edge of a batch
    ratio: float  # how much of what a pass reads is dirty


class CleaningPass:
    """One pass over a log: reads, cleans and writes, a little at a time."""

    def __init__(
        self,
        cleaned: Cleaned,
        log: LogReader,
        layout: Layout,
        generation: int,
        lease_owner: bytes,
        aborted: AbortedBatches,
    ) -> None:
        self._cleaned = cleaned
        self._log = log
        self._layout = layout
        self.generation = generation
        self._lease_owner = lease_owner
        self._aborted = aborted
        self._renewed = time.monotonic()
        self._began = self._slice_began = time.perf_counter()
        # The log as it is when the pass begins: the switch is refused when any of it has moved.
        self.start = log.start
        self._start_bytes = log.start_bytes
        self.old = log.clean

    def _scan(self, offset: int) -> AsyncGenerator[Entry, None]:
        if self._log.layout != self._layout:
            raise LogMoved("the log start moved")
        return self._log.scan(offset)

    async def note(self, plan: Plan) -> tuple[KeyMap, int]:
        """The newest offsets of the dirty keys, and where the pass ends if they do not all fit."""
        epochs = self._log.epochs
        first = epochs.skip_gap(plan.dirty.offset)
        keys = KeyMap(min(epochs.count(first, plan.note_to), KEYS_AT_ONCE))
        end = plan.end
        async with aclosing(self._scan(plan.dirty.offset)) as entries:
            async for entry in entries:
                if entry.base >= plan.note_to:
                    break
                if await self._note_entry(keys, entry, plan.note_to):
                    continue
                if entry.base <= first:
                    # Not even the first one fits: every pass has to make progress.
                    keys = KeyMap(sum(header.record_count for header in headers(entry.blob)))
                    await self._note_entry(keys, entry, plan.note_to)
                else:
                    end = min(end, entry.base)
                    break
        keys.last_offset = max(keys.last_offset, end - 1)
        return keys, end

    async def _note_entry(self, keys: KeyMap, entry: Entry, end: int) -> bool:
        for batch in split_batches(entry.blob):
            header = read_header(batch)
            if header.base_offset >= end:
                break
            await self._rest_if_due()
            if self._aborted.have(header):
                continue
            try:
                limit = self._log.unpacked_limit()
                async with self._log.unpacking.payload(batch, limit) as payload:
                    if not await self._in_steps(keys.note(batch, limit, payload)):
                        return False
            except CorruptBatch as fault:
                self._log.note_unreadable(header.base_offset, fault)
        return True

    async def write(
        self, keys: KeyMap, end: int, config: TopicConfig, now_ms: int
    ) -> tuple[CleanPart, int]:
        """Write what stays of everything below `end`; returns the new part and the bytes gone."""
        writer = GenerationWriter(self._cleaned, self._log.key, self.generation, now_ms)
        read = 0
        async with aclosing(self._scan(self.start)) as entries:
            async for entry in entries:
                if entry.base >= end:
                    break
                read += len(entry.blob)
                for batch in split_batches(entry.blob):
                    await self._rest_if_due()
                    header = read_header(batch)
                    if header.next_offset <= self.start or self._aborted.have(header):
                        continue
                    kept = await self._clean(batch, keys, config, now_ms)
                    if kept is not None:
                        await writer.add(kept)
        end_bytes = self._start_bytes + read
        return await writer.finish(end, end_bytes, self.old.generation)

    async def _clean(
        self, batch: memoryview, keys: KeyMap, config: TopicConfig, now_ms: int
    ) -> Buffer | None:
        limit = self._log.unpacked_limit()
        try:
            async with self._log.unpacking.payload(batch, limit) as payload:
                return await self._in_steps(
                    clean(
                        batch,
                        keys,
                        now_ms=now_ms,
                        delete_retention_ms=config.delete_retention_ms,
                        limit=limit,
                        codec=config.codec,
                        level=config.codec_level,
                        payload=payload,
                    )
                )
        except CorruptBatch:  # logged when its keys were noted
            return batch

    async def _in_steps(self, steps: Generator[None, None, T]) -> T:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self._rest_if_due()

    async def _rest_if_due(self) -> None:
        if time.perf_counter() - self._slice_began >= SLICE_S:
            await self._rest()

    async def _rest(self) -> None:
        """Let requests be served; for longer when there are many."""
        rested = time.perf_counter()
        await asyncio.sleep(0)
        others = time.perf_counter() - rested
        hurry = min((rested - self._began) / HURRY_AFTER_S, 1.0)
        rest = LONGEST_REST_S + hurry * (SHORTEST_REST_S - LONGEST_REST_S)
        await asyncio.sleep(max(others, rest))
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            if not await self._cleaned.renew_lease(self._log.key, self._lease_owner, LEASE_MS):
                raise PassEnded("the lease is lost")
        self._slice_began = time.perf_counter()


class GenerationWriter:
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
