"""Unpacking large batches without blocking the event loop, and within a limit of memory.

A batch of a few kilobytes may unpack to tens of megabytes. What unpacks to more than `AT_ONCE` is
unpacked in a thread, and only while all that is being unpacked in this worker fits into `TOTAL`:
others wait for their turn. A batch that may take more than that by its topic's configuration is
unpacked alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from moldau.broker.log.writing.validation import (
    LARGE,
    MANY_RECORDS,
    MAX_UNPACKED_AT_ONCE,
    most_records,
)
from moldau.broker.wire.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, Buffer, read_header
from moldau.broker.wire.codecs import NONE, OutputTooLarge, most_unpacked
from moldau.broker.wire.records import checked_header, payload_of

TOTAL = 256 << 20
T = TypeVar("T")


class Unpacking:
    """The memory that one worker unpacks batches into: first come, first served."""

    def __init__(self, total: int = TOTAL) -> None:
        self._total = total
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for room for `size` bytes, and keep it."""
        size = min(size, self._total)
        if self._waiting or self._taken + size > self._total:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(size)
                raise
        else:
            self._taken += size
        try:
            yield
        finally:
            self._give_back(size)

    def _give_back(self, size: int) -> None:
        self._taken -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif self._taken + wanted <= self._total:
                self._waiting.popleft()
                self._taken += wanted
                turn.set_result(None)
            else:
                return

    async def apply(self, work: Callable[[Buffer, int], T], batch: Buffer, limit: int) -> T:
        """The result of `work`, which unpacks a batch of a log to at most as many bytes as it is
        given: at once if it is small, else in a thread. Raises CorruptBatch."""
        header = read_header(batch)
        if len(batch) < LARGE and header.record_count < MANY_RECORDS:
            try:
                return work(batch, min(limit, MAX_UNPACKED_AT_ONCE))
            except OutputTooLarge:
                if limit <= MAX_UNPACKED_AT_ONCE:
                    raise
        _check_count(header, limit)
        async with self.room(_most(batch, header, limit)):
            return await asyncio.to_thread(work, batch, limit)

    @asynccontextmanager
    async def payload(self, batch: Buffer, limit: int) -> AsyncIterator[bytes]:
        """The unpacked records of a batch, for as long as they are needed. Raises CorruptBatch."""
        header = checked_header(batch)
        if len(batch) < LARGE or header.attributes & CODEC_MASK == NONE:
            try:
                payload = payload_of(batch, header, min(limit, MAX_UNPACKED_AT_ONCE))
            except OutputTooLarge:
                if limit <= MAX_UNPACKED_AT_ONCE:
                    raise
            else:
                yield payload
                return
        _check_count(header, limit)
        async with self.room(_most(batch, header, limit)):
            yield await asyncio.to_thread(payload_of, batch, header, limit)


def _check_count(header: BatchHeader, limit: int) -> None:
    if header.record_count > most_records(limit) and header.attributes & CODEC_MASK != NONE:
        raise OutputTooLarge(f"{header.record_count} records, more than {most_records(limit)}")


def _most(batch: Buffer, header: BatchHeader, limit: int) -> int:
    payload = memoryview(batch)[HEADER_SIZE:]
    return most_unpacked(header.attributes & CODEC_MASK, payload, max(limit, len(payload)))
