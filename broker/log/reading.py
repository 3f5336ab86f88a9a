"""Reading a log: whole batches from an offset on, from the tail cache or from Redis.

Batches are served as they were stored; an entry is only ever cut at a batch's edge. The reader's
client skips the records before its offset in the first batch.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import StoreFault
from broker.log.state import LogState
from broker.log.tail import Tail
from broker.store import keys
from broker.store.streams import Entry, Streams
from broker.wire.batch import Buffer, cut, find_batch

FIRST_COUNT = 8
MOST_COUNT = 2048

ReadDone = Callable[[list[Buffer] | StoreFault], None]


class Reading:
    """The reading half of a partition's log."""

    def __init__(self, streams: Streams, key: bytes, tail: Tail) -> None:
        self._streams = streams
        self.key = key
        self.tail = tail
        self.state = LogState()
        self.start = 0  # log start offset
        self.start_bytes = 0  # bytes ever appended before it
        # A compacted log keeps its cleaned part, all below `clean_end`, in a stream of its own.
        self.clean_generation = 0
        self.clean_end = 0
        self.waiters: dict[object, Callable[[], None]] = {}

    @property
    def end(self) -> int:
        """High watermark and last stable offset: what is in Redis is committed."""
        return self.state.end

    @property
    def size(self) -> int:
        """Bytes from the log start on."""
        return max(self.state.size - self.start_bytes, 0)

    async def load_start(self) -> None:
        """Read where the log starts and what of it is cleaned."""
        saved = await self._streams.saved_state(self.key)
        if saved.start > self.start:
            self.start, self.start_bytes = saved.start, saved.start_bytes
        if saved.clean is not None:
            generation, end, start_bytes = map(int, saved.clean.split(b":"))
            if generation > self.clean_generation:
                self.clean_generation, self.clean_end = generation, end
                self.start_bytes = start_bytes

    def wake(self) -> None:
        """There is something new: tell everybody who waits for it."""
        waiting, self.waiters = self.waiters, {}
        for woken in waiting.values():
            woken()

    # --- from the tail cache ---

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> list[Buffer] | None:
        """Whole batches from `offset`, at most `limit` bytes; None when that is not cached."""
        index = self.tail.find(offset)
        if index is None:
            return None
        out: list[Buffer] = []
        left = limit
        entry = self.tail.entry(index)
        while entry is not None:
            for part in entry.parts:
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

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        """The same from Redis, in one round trip unless the entries turn out to be small."""
        _StoreRead(self, self._streams, offset, limit, at_least_one, done).start()

    def stream_for(self, offset: int) -> bytes:
        if offset < self.clean_end:
            return keys.clean(self.key, self.clean_generation)
        return self.key


class _StoreRead:
    """Reads on, more at a time, until the limit or the end is reached."""

    def __init__(
        self,
        log: Reading,
        streams: Streams,
        offset: int,
        limit: int,
        at_least_one: bool,
        done: ReadDone,
    ) -> None:
        self._log = log
        self._streams = streams
        self._offset = offset
        self._limit = limit
        self._at_least_one = at_least_one
        self._done = done
        self._out: list[Buffer] = []
        self._size = 0
        self._count = FIRST_COUNT
        self._key = log.stream_for(offset)
        self._asked = 0

    def start(self) -> None:
        self._asked = self._count
        self._streams.read(self._key, self._offset, self._count, self._first)

    def _first(self, entries: list[Entry] | StoreFault) -> None:
        if isinstance(entries, StoreFault):
            self._done(entries)
            return
        self._asked += 1 if entries and entries[0].base <= self._offset else 0
        self._take(entries)

    def _take(self, entries: list[Entry] | StoreFault) -> None:
        if isinstance(entries, StoreFault):
            # What was read already is good; the client comes back for the rest.
            self._done(self._out or entries)
            return
        for entry in entries:
            blob: Buffer = entry.blob
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
                return
        if self._size >= self._limit or not self._more(entries):
            self._done(self._out)

    def _more(self, entries: list[Entry]) -> bool:
        """Ask for what follows, as much as the entries so far let expect to fit."""
        if len(entries) < self._asked:
            if self._key == self._log.key or self._log.clean_end <= self._offset:
                return False
            # The cleaned part is read to its end: go on in the live part.
            self._offset = max(self._offset, self._log.clean_end)
            self._key = self._log.key
            following = self._offset
        else:
            following = entries[-1].base + 1
        average = max(self._size // max(len(self._out), 1), 1)
        expected = (self._limit - self._size) // average + 1
        self._count = min(self._count * 4, MOST_COUNT, expected)
        self._asked = self._count
        self._streams.read_on(self._key, following, self._count, self._take)
        return True
