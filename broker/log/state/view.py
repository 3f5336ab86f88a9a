"""What this worker knows of a log: its state, where it lies, its newest bytes, and how much of it
readers see.

The newest bytes are the tail cache. Consumers that keep up are served from it and never touch
Redis. One budget of bytes for the whole worker; the oldest entry of any log goes first, so what is
left of a log always reaches its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import msgspec

from moldau.broker.log.state.log_state import LogState
from moldau.broker.store import keys
from moldau.broker.store.streams import NOTHING_CLEANED
from moldau.broker.store_loss.epochs import EPOCH_ZERO
from moldau.broker.wire.batch import Buffer


class CachedEntry(msgspec.Struct, frozen=True, gc=False):
    base: int
    end: int
    size: int
    # Whole batches in each part, so that a cut at a batch's edge finds its header.
    parts: tuple[Buffer, ...]


class Tail:
    """The cached entries of one log, contiguous up to its end."""

    __slots__ = ("_bases", "_entries", "_first", "_owner")

    def __init__(self, owner: TailCache) -> None:
        self._owner = owner
        self._bases: list[int] = []
        self._entries: list[CachedEntry] = []
        self._first = 0  # entries before it are dropped; the lists are shortened now and then

    @property
    def start(self) -> int | None:
        """The first offset that is cached."""
        return self._bases[self._first] if self._first < len(self._bases) else None

    def add(self, entry: CachedEntry) -> None:
        """Remember an entry; one that does not continue what is cached replaces it."""
        if self._first < len(self._entries) and self._entries[-1].end != entry.base:
            self.clear()
        self._bases.append(entry.base)
        self._entries.append(entry)
        self._owner.added(self, entry.size)

    def find(self, offset: int) -> int | None:
        """Where reading at `offset` begins: an index for `entry`. None when it is not cached."""
        first = self._first
        if first >= len(self._bases) or offset < self._bases[first]:
            return None
        return bisect_right(self._bases, offset, first) - 1

    def entry(self, index: int) -> CachedEntry | None:
        return self._entries[index] if index < len(self._entries) else None

    def drop_before(self, offset: int) -> None:
        """Forget the entries that end at `offset` or before it."""
        dropped = freed = 0
        while self._first < len(self._entries) and self._entries[self._first].end <= offset:
            freed += self._drop_first()
            dropped += 1
        self._owner.forget(self, dropped, freed)

    def drop_oldest(self) -> int:
        """Called by the cache, once for every entry added; returns the bytes freed."""
        return self._drop_first() if self._first < len(self._entries) else 0

    def _drop_first(self) -> int:
        freed = self._entries[self._first].size
        self._entries[self._first] = _GONE
        self._first += 1
        if self._first >= 64 and self._first * 2 >= len(self._entries):
            del self._bases[: self._first]
            del self._entries[: self._first]
            self._first = 0
        return freed

    def clear(self) -> None:
        freed = sum(entry.size for entry in self._entries[self._first :])
        self._owner.forget(self, len(self._entries) - self._first, freed)
        self._bases.clear()
        self._entries.clear()
        self._first = 0


_GONE = CachedEntry(-1, -1, 0, ())


class TailCache:
    """The budget that all tails of a worker share."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._order: deque[Tail] = deque()  # whose oldest entry is the next to go
        self._skip: dict[Tail, int] = {}  # entries that are gone and still in the order
        self._gone = 0  # how many those are, all tails together

    def tail(self) -> Tail:
        return Tail(self)

    def added(self, tail: Tail, size: int) -> None:
        self._order.append(tail)
        self.size += size
        while self.size > self.budget and self._order:
            oldest = self._order.popleft()
            if not self._is_gone(oldest):
                self.size -= oldest.drop_oldest()

    def forget(self, tail: Tail, entries: int, size: int) -> None:
        self.size -= size
        if entries:
            self._skip[tail] = self._skip.get(tail, 0) + entries
            self._gone += entries
            # Otherwise a cache that never gets full would keep them forever.
            if self._gone >= 1024 and self._gone * 2 >= len(self._order):
                self._order = deque(tail for tail in self._order if not self._is_gone(tail))

    def _is_gone(self, tail: Tail) -> bool:
        """Is the next entry of this tail, in order, gone already? Counts it off if so."""
        skipped = self._skip.get(tail)
        if not skipped:
            return False
        self._gone -= 1
        if skipped == 1:
            del self._skip[tail]
        else:
            self._skip[tail] = skipped - 1
        return True


class LogView:
    """One log. The writer keeps `state` current; a reader adds how the log is read."""

    def __init__(self, topic: str, partition: int, key: bytes, tail: Tail) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.tail = tail
        self.state = LogState()
        self.start = 0  # log start offset
        self.start_bytes = 0  # bytes ever appended that are gone: before it, or by compaction
        self.clean = NOTHING_CLEANED
        # The end and size that readers see: as far as every replica of the store has the log. None,
        # without replicas: all of it.
        self.shown: tuple[int, int] | None = None
        self.epochs = EPOCH_ZERO

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def end(self) -> int:
        """The high watermark: the end of what may be read."""
        return self.state.end if self.shown is None else self.shown[0]

    @property
    def bytes_shown(self) -> int:
        """The bytes below the high watermark, of everything ever appended."""
        return self.state.size if self.shown is None else self.shown[1]

    @property
    def stable_end(self) -> int:
        """The last stable offset: read_committed consumers read up to there."""
        transactions = self.state.transactions
        if not transactions.open:
            return self.end
        return max(min(transactions.stable_end(self.state.end), self.end), self.start)

    @property
    def bytes_stable(self) -> int:
        """The bytes below the last stable offset, of everything ever appended."""
        transactions = self.state.transactions
        if not transactions.open:
            return self.bytes_shown
        return min(transactions.stable_size(self.state.size), self.bytes_shown)

    def hold_readers(self) -> None:
        """What is appended from now on is shown once replicas have it."""
        if self.shown is None:
            self.shown = (self.state.end, self.state.size)

    def show_readers(self, end: int, size: int) -> None:
        if self.shown is not None and end > self.shown[0]:
            self.shown = (end, size)

    def release_readers(self) -> None:
        """There are no replicas to wait for."""
        self.shown = None

    @property
    def size(self) -> int:
        """Bytes from the log start on."""
        return max(self.state.size - self.start_bytes, 0)

    @property
    def clean_key(self) -> bytes:
        return keys.clean(self.key, self.clean.generation)
