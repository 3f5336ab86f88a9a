"""Reading a log from Redis for a Fetch: more at a time, until the limit or the end is reached.

Reading ahead: what a consumer that catches up fetches next is read while it digests the last. Where
a read from the store ends, a `Cursor` is left: the offset at which the next one is expected, and
what was read beyond the limit of the first. A Fetch that continues there takes the cursor. It needs
no search for the entry that holds its offset, and knows how many entries fit. The second read in a
row also makes the store read on at once, up to as many bytes again.

All cursors of a worker share one budget of bytes. What is not used within seconds is dropped, and
that consumer has to read twice in a row again: one that is slower than that needs no reading ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.log.log import ReadDone
from moldau.broker.metrics.document import Family, Kind, Sample
from moldau.broker.store.streams import Entry, Streams
from moldau.broker.wire.batch import Buffer, CorruptBatch, base_offset_at, cut, find_batch

if TYPE_CHECKING:
    from moldau.broker.log.reading.reader import Layout, LogReader


logger = logging.getLogger("moldau.log")
FIRST_COUNT = 16
NO_END = 1 << 63


UNUSED_S = 5.0
MAX_ENTRIES_PER_READ = 2048
GROWTH = 4  # how many more entries a read asks for than the one before: sizes may change
CURSORS_OF_A_LOG = 64

Resume = Callable[["Cursor"], None]


class Cursor:
    """Where a read ended, and what follows as far as it is known."""

    __slots__ = (
        "count",
        "entries",
        "held",
        "is_edge",
        "is_reading",
        "is_sequential",
        "layout",
        "start",
        "until",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, start: int, layout: Layout, entries: list[Entry], count: int, *, is_sequential: bool
    ) -> None:
        self.start = start  # the offset at which the next read is expected
        self.layout = layout
        self.entries = entries  # the first one holds `start`
        self.is_edge = not entries or entries[0].base == start  # an entry begins at `start`
        self.count = count  # entries that are asked for
        self.is_sequential = is_sequential
        self.held = 0  # bytes of the budget
        self.until = 0.0
        self.is_reading = False
        self.waiting: Resume | None = None  # a Fetch that came before the store's reply


class ReadAhead:
    """The cursors of a worker that hold bytes, in the order in which they run out."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.held = 0
        self.used = self.unused = 0  # reads ahead, counted
        self._holding: dict[Cursor, LogReader] = {}
        self._timer: asyncio.TimerHandle | None = None

    def families(self) -> list[Family]:
        return [
            Family("moldau_read_ahead_bytes", Kind.GAUGE, "Bytes read ahead of consumers.", (),
                   [Sample((), self.held)]),
            Family("moldau_read_ahead_total", Kind.COUNTER,
                   "Reads ahead of consumers that catch up, by whether a consumer came for them.",
                   ("outcome",), [Sample(("used",), self.used), Sample(("unused",), self.unused)]),
        ]  # fmt: skip

    def take(self, cursor: Cursor) -> None:
        """A Fetch continues at the cursor: what it holds is the Fetch's now."""
        if cursor.held:
            self.used += 1
            self._release(cursor)

    def drop(self, cursor: Cursor) -> None:
        if cursor.held:
            self.unused += 1
            self._release(cursor)

    def keep(self, reader: LogReader, cursor: Cursor) -> None:
        """Keep what was read beyond the limit, if there is room for it."""
        if cursor.entries and not self._hold(reader, cursor, _size(cursor.entries)):
            self._forget_entries(reader, cursor)

    def read(self, reader: LogReader, streams: Streams, cursor: Cursor, limit: int) -> None:
        """Read on from the cursor, until it has about `limit` bytes."""
        following = cursor.start
        if cursor.entries:
            following = reader.epochs.skip_gap(cursor.entries[-1].end)
        if _size(cursor.entries) >= limit or following >= reader.end:
            self.keep(reader, cursor)
            return
        if not self._hold(reader, cursor, limit):
            self._forget_entries(reader, cursor)
            return
        cursor.is_reading = True

        def arrived(found: list[Entry] | StoreFault) -> None:
            cursor.is_reading = False
            waiting, cursor.waiting = cursor.waiting, None
            if waiting is None and not cursor.held:
                return  # nobody came for it in time
            # A hole means that the log was trimmed: the Fetch finds out.
            if not isinstance(found, StoreFault) and found and found[0].base == following:
                cursor.entries = cursor.entries + found
            if waiting is not None:
                waiting(cursor)
            else:
                self._fit(cursor)

        streams.read_on(reader.key, following, cursor.count, arrived)

    def _hold(self, reader: LogReader, cursor: Cursor, size: int) -> bool:
        if self.held + size > self.budget:
            return False
        loop = asyncio.get_running_loop()
        cursor.held = size
        cursor.until = loop.time() + UNUSED_S
        self.held += size
        self._holding[cursor] = reader
        if self._timer is None:
            self._timer = loop.call_later(UNUSED_S, self._expire)
        return True

    def _fit(self, cursor: Cursor) -> None:
        """Entries may have turned out larger than expected: keep what the budget has room for."""
        self.held -= cursor.held
        room = self.budget - self.held
        size = 0
        for at, entry in enumerate(cursor.entries):
            if size + len(entry.blob) > room:
                del cursor.entries[at:]
                break
            size += len(entry.blob)
        cursor.held = max(size, 1)
        self.held += cursor.held

    def _release(self, cursor: Cursor) -> None:
        del self._holding[cursor]
        self.held -= cursor.held
        cursor.held = 0

    def _expire(self) -> None:
        """Drop what nobody came for."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._holding:
            cursor, reader = next(iter(self._holding.items()))
            if cursor.until > now:
                self._timer = loop.call_at(cursor.until, self._expire)
                return
            self.unused += 1
            self._release(cursor)
            self._forget_entries(reader, cursor)

    def _forget_entries(self, reader: LogReader, cursor: Cursor) -> None:
        cursor.entries = []
        cursor.is_sequential = False
        if not cursor.is_edge and reader.cursors.get(cursor.start) is cursor:
            del reader.cursors[cursor.start]


def _size(entries: list[Entry]) -> int:
    return sum(len(entry.blob) for entry in entries)


def fitting(found: LogReader, offset: int, limit: int) -> int:
    """How many entries to ask for first: few enough that large ones are not read in vain."""
    if offset < found.clean.end:
        size, entries = found.clean.end_bytes - found.start_bytes, found.clean.entries
    else:
        size, entries = found.state.size, found.state.entries
    average = size // entries if entries else 0
    return min(limit // max(average, 1) + 1, FIRST_COUNT)


class StoreRead:
    """Reads on, more at a time, until the limit or the end is reached."""

    def __init__(
        self,
        log: LogReader,
        streams: Streams,
        offset: int,
        limit: int,
        at_least_one: bool,
        done: ReadDone,
        end: int,
    ) -> None:
        self._log = log
        self._end = end  # the edge of a batch: nothing from here on
        self._streams = streams
        self._wanted = offset
        self._limit = limit
        self._at_least_one = at_least_one
        self._done = done
        self._out: list[Buffer] = []
        self._size = 0
        self._take_what_is_there = False
        self._is_sequential = False

    def start(self) -> None:
        found = self._log
        self._layout, self._clean = found.layout, found.clean
        self._offset = self._wanted  # nothing before it is wanted
        if self._offset < self._clean.end and not self._clean.entries:
            self._offset = self._clean.end
        self._offset = found.epochs.skip_gap(self._offset)
        if self._offset >= min(found.end, self._end):
            self._done([])
            return
        self._in_clean = self._offset < self._clean.end
        self._key = found.clean_key if self._in_clean else found.key
        cursor = None if self._in_clean else found.take_cursor(self._offset)
        if cursor is None:
            self._count = fitting(found, self._offset, self._limit)
            self._streams.read(self._key, self._offset, self._count, self._first)
        elif cursor.is_reading:
            cursor.waiting = self._resume
        else:
            self._resume(cursor)

    def _resume(self, cursor: Cursor) -> None:
        """Continue where another read ended."""
        self._is_sequential = True
        self._count = cursor.count
        if self._log.layout != self._layout:
            self.start()  # while the store read ahead; the cursor is taken, so this happens once
        elif cursor.entries:
            self._take(cursor.entries)
        elif cursor.is_edge:
            self._streams.read_on(self._key, self._offset, self._count, self._take)
        else:
            self._streams.read(self._key, self._offset, self._count, self._first)

    def _first(self, entries: list[Entry] | StoreFault) -> None:
        if not isinstance(entries, StoreFault) and entries and entries[0].base <= self._offset:
            self._count += 1
        self._take(entries)

    def _take(self, entries: list[Entry] | StoreFault) -> None:
        if isinstance(entries, StoreFault):
            # What was read so far is valid; the client fetches the rest.
            self._done(self._out or entries)
            return
        if self._misses_something(entries) and not self._take_what_is_there:
            self._look_again()
            return
        try:
            self._cut_to_fit(entries)
        except CorruptBatch as fault:
            logger.error("%s: not ours at or after %d: %s", self._key, self._offset, fault)  # noqa: TRY400
            self._done(self._out or StoreRefused(str(fault)))

    def _cut_to_fit(self, entries: list[Entry]) -> None:
        end = min(self._log.end, self._end)
        last = len(entries) - 1
        for at, entry in enumerate(entries):
            if entry.base >= end and not self._in_clean:
                break  # appended since: no client gets records beyond the end it is sent
            blob: Buffer = entry.blob
            if self._end != NO_END and (at == last or entries[at + 1].base > self._end):
                stop = find_batch(blob, self._end)
                blob = blob if stop == len(blob) else memoryview(blob)[:stop]
            begin = find_batch(blob, self._offset) if entry.base < self._offset else 0
            if begin == len(blob):
                continue
            left = self._limit - self._size
            stop = cut(blob, begin, left, at_least_one=self._at_least_one and not self._out)
            if stop > begin:
                whole = begin == 0 and stop == len(blob)
                self._out.append(blob if whole else memoryview(blob)[begin:stop])
                self._size += stop - begin
            if stop < len(blob):
                self._done(self._out)
                self._leave_cursor(base_offset_at(blob, stop), entries[at:])
                return
        if self._size >= self._limit:
            self._done(self._out)
            self._leave_cursor(entries[-1].end, [])
        elif not self._more(entries):
            self._done(self._out)

    def _leave_cursor(self, offset: int, beyond: list[Entry]) -> None:
        """The client is expected to go on at `offset`. `beyond`: what was read and did not fit."""
        found = self._log
        offset = found.epochs.skip_gap(offset)
        if self._in_clean or found.layout != self._layout or offset >= min(found.end, self._end):
            return
        average = max(self._size // max(len(self._out), 1), 1)
        count = min(self._limit // average + 1, self._count * GROWTH, MAX_ENTRIES_PER_READ)
        cursor = Cursor(offset, self._layout, beyond, count, is_sequential=self._is_sequential)
        found.leave_cursor(cursor, self._limit)

    def _misses_something(self, entries: list[Entry]) -> bool:
        if not entries:
            return True
        if self._in_clean:
            return len(entries) < self._count and entries[-1].base != self._clean.last
        return entries[0].base > self._offset

    def _look_again(self) -> None:
        """Either the log does not lie where we thought, or it is damaged: find out which."""
        if self._out:
            self._done(self._out)  # the client fetches the rest
        else:
            self._log.reload_start(self._looked)

    def _looked(self, fault: StoreFault | None) -> None:
        found = self._log
        if fault is not None:
            self._done(fault)
        elif self._wanted < found.start:
            self._done([])  # trimmed meanwhile: the next fetch will be out of range
        else:
            if found.layout == self._layout:
                # The topic is being deleted, or a Redis client used XDEL: return what is left.
                logger.warning("%r: nothing at offset %d", found, self._offset)
                self._take_what_is_there = True
            self.start()

    def _more(self, entries: list[Entry]) -> bool:
        """Ask for what follows: as much as will fit, judging by the entries so far."""
        if self._in_clean and entries and entries[-1].base != self._clean.last:
            following = entries[-1].base + 1
        elif self._in_clean:
            self._in_clean, self._key = False, self._log.key
            following = self._offset = self._log.epochs.skip_gap(self._clean.end)
        elif not entries:
            return False
        else:
            following = self._offset = self._log.epochs.skip_gap(entries[-1].end)
        if not self._in_clean and following >= min(self._log.end, self._end):
            return False
        average = max(self._size // max(len(self._out), 1), 1)
        expected = (self._limit - self._size) // average + 1
        self._count = min(self._count * GROWTH, MAX_ENTRIES_PER_READ, expected)
        self._streams.read_on(self._key, following, self._count, self._take)
        return True
