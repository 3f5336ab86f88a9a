"""Reading a log: whole batches from an offset on, from the tail cache or from Redis.

Batches are served as they were stored; an entry is only ever cut between two batches. The client
skips the records before its offset in the first batch.

A log can lie in two streams: what compaction left of its beginning, and the live rest (see
store/cleaned.py). Another worker may trim or replace either of them while it is read here, before
its announcement has arrived. No client is shown a hole because of that: the live stream is dense
except for the gaps that are noted in its epochs (epochs.py), and the base offset of the cleaned
part's last entry is known, so a reader notices that something is missing. It then reads again where
the log lies, and starts over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator

from moldau.broker.errors import MoldauError, StoreFault, StoreRefused
from moldau.broker.log.callbacks import await_callback
from moldau.broker.log.log import ReadDone, topic_gone
from moldau.broker.log.reading.store_read import (
    CURSORS_OF_A_LOG,
    MAX_ENTRIES_PER_READ,
    NO_END,
    Cursor,
    ReadAhead,
    StoreRead,
    fitting,
)
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.state.view import LogView, Tail
from moldau.broker.store.streams import Entry, SavedStart, Streams
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.wire.batch import Buffer, CorruptBatch, cut, find_batch

logger = logging.getLogger("moldau.log")

MAX_UNREADABLE_NOTED = 1000  # per log
UNPACKED_LIMIT = 64 << 20
SCAN_BYTES = 1 << 20  # what a scan reads at a time


Layout = tuple[int, int, int]


class LogMoved(MoldauError):
    """The log was trimmed or replaced, or lost its end, under a scan; what it is now has been
    read."""


class LogReader(LogView):
    """Where a log lies in the store, and how it is read (a `FetchReader` for every client)."""

    def __init__(
        self,
        streams: Streams,
        topic: str,
        partition: int,
        key: bytes,
        tail: Tail,
        read_ahead: ReadAhead,
        unpacking: Unpacking | None = None,
    ) -> None:
        super().__init__(topic, partition, key, tail)
        self._streams = streams
        self._read_ahead = read_ahead
        self.cursors: dict[int, Cursor] = {}  # by the offset at which a read is expected
        self.on_epoch: Callable[[], None] | None = None  # a new one was found in the store
        self._unreadable: set[int] = set()  # base offsets
        self.unpacking = unpacking or Unpacking()
        self.unpacked_limit: Callable[[], int] = lambda: UNPACKED_LIMIT  # bytes of a batch

    def note_unreadable(self, offset: int, reason: CorruptBatch) -> None:
        """A batch whose records cannot be read stays, and is passed over. Logged once."""
        if offset not in self._unreadable and len(self._unreadable) < MAX_UNREADABLE_NOTED:
            self._unreadable.add(offset)
            logger.warning(
                "%r: the batch at offset %d cannot be read and stays as it is (%d so far): %s",
                *(self, offset, len(self._unreadable), reason),
            )

    async def load_start(self) -> None:
        """Read where the log starts, what of it is cleaned, and its leader epochs."""
        await await_callback(self.reload_start)

    def reload_start(self, done: Callable[[StoreFault | None], None]) -> None:
        """`load_start` with a callback."""

        def loaded(saved: SavedStart | StoreFault) -> None:
            try:
                if isinstance(saved, StoreFault):
                    raise saved
                self.start_loaded(saved)
            except StoreFault as fault:
                done(fault)
            else:
                done(None)

        self._streams.saved_start(self.key, loaded)

    def start_loaded(self, saved: SavedStart, *, may_go_back: bool = False) -> None:
        """`may_go_back`: the store may have lost what was known."""
        # Both only move up; a deleted log has neither.
        if may_go_back or (
            saved.start >= self.start and saved.clean.generation >= self.clean.generation
        ):
            self.start, self.start_bytes, self.clean, _ = saved
            # What compaction or retention removed is not served from memory either.
            dense_from = max(self.start, self.clean.end)
            self.tail.drop_before(dense_from)
            self.state.transactions.drop_before(dense_from)
        try:
            epochs = Epochs.parse(saved.epochs)
        except ValueError as fault:
            raise StoreRefused(f"{self!r}: {fault}") from None
        if may_go_back or epochs.current > self.epochs.current:
            self.epochs = epochs
            # What was lost is not served from memory either.
            self.tail.clear()
            self.drop_cursors()
            if epochs.current and self.on_epoch is not None:
                self.on_epoch()

    def drop_cursors(self) -> None:
        for cursor in self.cursors.values():
            self._read_ahead.drop(cursor)
        self.cursors.clear()

    @property
    def layout(self) -> Layout:
        """Changes when the log is trimmed, its cleaned part replaced, or a new epoch begins."""
        return self.start, self.clean.generation, self.epochs.current

    def is_at_end(self, offset: int) -> bool:
        return offset >= self.end

    # --- from the tail cache ---

    def read_tail(
        self, offset: int, limit: int, *, at_least_one: bool, end: int | None = None
    ) -> list[Buffer] | None:
        """Whole batches from `offset`, at most `limit` bytes; None when that is not cached.

        `end`: where they end at the latest, the edge of a batch; by default the high watermark.
        """
        index = self.tail.find(offset)
        if index is None:
            return None
        out: list[Buffer] = []
        left = limit
        entry = self.tail.entry(index)
        if end is None:
            end = self.end
        while entry is not None and entry.base < end:
            for part in entry.parts if entry.end <= end else _cut_parts(entry.parts, end):
                begin = 0
                if not out and offset > entry.base:
                    begin = find_batch(part, offset)
                    if begin == len(part):
                        continue
                size = len(part) - begin
                if size <= left:
                    out.append(part if begin == 0 else memoryview(part)[begin:])
                    left -= size
                    continue
                stop = cut(part, begin, left, at_least_one=at_least_one and not out)
                if stop > begin:
                    out.append(memoryview(part)[begin:stop])
                return out
            index += 1
            entry = self.tail.entry(index)
        return out

    # --- from Redis ---

    def read_store(
        self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone, end: int = NO_END
    ) -> None:
        """`read_tail` from Redis, in one round trip unless the entries turn out to be small."""
        StoreRead(self, self._streams, offset, limit, at_least_one, done, end).start()

    def take_cursor(self, offset: int) -> Cursor | None:
        """The cursor that an earlier read left at `offset`, if the log is still the same."""
        cursor = self.cursors.pop(offset, None)
        if cursor is not None:
            self._read_ahead.take(cursor)
            if cursor.layout != self.layout:
                return None
        return cursor

    def leave_cursor(self, cursor: Cursor, limit: int) -> None:
        """A reader is expected to go on there, and to want about `limit` bytes again."""
        if self.tail.find(cursor.start) is not None:
            return  # it is served from memory from there on
        replaced = self.cursors.pop(cursor.start, None)
        if replaced is None and len(self.cursors) >= CURSORS_OF_A_LOG:
            replaced = self.cursors.pop(next(iter(self.cursors)))
        if replaced is not None:
            self._read_ahead.drop(replaced)
        self.cursors[cursor.start] = cursor
        if cursor.is_sequential:
            self._read_ahead.read(self, self._streams, cursor, limit)
        else:
            self._read_ahead.keep(self, cursor)

    async def scan(self, offset: int) -> AsyncGenerator[Entry, None]:
        """Entries from the one that holds `offset` on, to the end; raises LogMoved.

        Of an offset in a gap, from the end of the gap. Reads a few MiB at a time, however long the
        log is.
        """
        layout, clean, end = self.layout, self.clean, self.end
        if offset < clean.end:
            if clean.entries:
                key = self.clean_key
                entries = await self._streams.entries_at(key, offset, _first_count(self, offset))
                while True:
                    for entry in entries:
                        # If the offset is in a gap, the entry below it ends before it.
                        if entry.base >= offset or entry.end > offset:
                            yield entry
                    if not entries:
                        await self._moved(layout)
                        break
                    if (last := entries[-1].base) >= clean.last:
                        break
                    entries = await self._streams.first_entries(key, last + 1, _next_count(entries))
            offset = clean.end
        offset = self.epochs.skip_gap(offset)
        if offset >= end:
            return
        entries = await self._streams.entries_at(self.key, offset, _first_count(self, offset))
        if not entries or entries[0].base > offset:
            await self._moved(layout)
        while entries:
            for entry in entries:
                yield entry
            following = self.epochs.skip_gap(entries[-1].end)
            if following >= end:
                return
            entries = await self._streams.first_entries(self.key, following, _next_count(entries))
            if not entries or entries[0].base > following:
                await self._moved(layout)

    async def _moved(self, layout: Layout) -> None:
        """Entries are missing from a scan: find out why."""
        await self.load_start()
        if self.layout != layout:
            raise LogMoved
        if not await self._streams.exists(self.key):
            raise topic_gone()
        logger.error("%r has a hole: another client removed entries from the store", self)


def _first_count(found: LogReader, offset: int) -> int:
    return fitting(found, offset, SCAN_BYTES)


def _next_count(entries: list[Entry]) -> int:
    average = max(sum(len(entry.blob) for entry in entries) // len(entries), 1)
    return max(min(SCAN_BYTES // average, len(entries) * 4, MAX_ENTRIES_PER_READ), 1)


def _cut_parts(parts: tuple[Buffer, ...], end: int) -> Iterator[Buffer]:
    """What of an entry's parts lies before `end`, the edge of a batch."""
    for part in parts:
        stop = find_batch(part, end)
        if stop:
            yield part if stop == len(part) else memoryview(part)[:stop]
        if stop < len(part):
            return
