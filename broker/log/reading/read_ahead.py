"""Reading ahead: what a consumer that catches up fetches next is read while it digests the last.

Where a read from the store ends, a `Cursor` is left: the offset at which the next one is expected,
and what was read beyond the limit of the first. A Fetch that continues there takes the cursor. It
needs no search for the entry that holds its offset, and knows how many entries fit. The second read
in a row also makes the store read on at once, up to as many bytes again.

All cursors of a worker share one budget of bytes. What is not used within seconds is dropped, and
that consumer has to read twice in a row again: one that is slower than that needs no reading ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.errors import StoreFault
from moldau.broker.log.reading.entries import end_of
from moldau.broker.metrics.document import Family, Kind, Sample
from moldau.broker.store.streams import Entry, Streams

if TYPE_CHECKING:
    from moldau.broker.log.reading.reader import Layout, LogReader

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
            following = reader.epochs.skip_gap(end_of(cursor.entries[-1]))
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
