"""The records of a share-partition from its start to the end of what was handed out.

A record has a state (a byte, see `states.py`), the number of its lock, and a **position**.
Positions are consecutive and never used again. Runs of consecutive offsets are kept as pairs of an
offset and a position: one pair for nearly every log. Offsets without a record (gaps of lost tails,
batches that compaction took) have no position, so they take no room.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from moldau.broker.share import states


class Window:
    """`records` (a state each) and `locks` begin at position `base`; `end` is the offset behind the
    last record."""

    __slots__ = (
        "_offsets",
        "_positions",
        "base",
        "end",
        "finished",
        "hint",
        "locks",
        "records",
        "top",
    )

    def __init__(self, end: int) -> None:
        self.records = bytearray()
        self.locks = array("I")
        self.base = 0
        self.top = 0
        """The position behind the last record."""
        self.end = end
        self.hint = 0
        """The position before which nothing is available."""
        self.finished = 0
        """The number of records in the window that are finished."""
        self._offsets: list[int] = []
        self._positions: list[int] = []

    def __len__(self) -> int:
        return len(self.records)

    @property
    def start(self) -> int:
        """The offset of the first record; without records, `end`."""
        return self._offsets[0] if self._offsets else self.end

    # --- offsets and positions ---

    def position(self, offset: int) -> int | None:
        """Return the position of the record at an offset, if there is one."""
        run = bisect_right(self._offsets, offset) - 1
        if run < 0:
            return None
        position = self._positions[run] + offset - self._offsets[run]
        return position if position < self._end_of(run) else None

    def position_from(self, offset: int) -> int:
        """Return the position of the first record at this offset or behind it."""
        run = bisect_right(self._offsets, offset) - 1
        if run < 0:
            return self.base
        return min(self._positions[run] + offset - self._offsets[run], self._end_of(run))

    def offset(self, position: int) -> int:
        """Return the offset of a position; of `top`, the end."""
        if position >= self.top:
            return self.end
        run = bisect_right(self._positions, position) - 1
        return self._offsets[run] + position - self._positions[run]

    def pieces(self, first: int, after: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last offsets of the records at these positions, as runs of
        consecutive offsets."""
        run = bisect_right(self._positions, first) - 1
        while first < after:
            stop = min(after, self._end_of(run))
            begin = self._offsets[run] + first - self._positions[run]
            yield begin, begin + stop - first - 1
            first = stop
            run += 1

    def _end_of(self, run: int) -> int:
        return self._positions[run + 1] if run + 1 < len(self._positions) else self.top

    def jumps(self, first: int, after: int) -> list[tuple[int, int]]:
        """Return the holes between these positions, as what is stored of them: the number of
        records before each (from `first`, or the hole before), and the offsets it skips."""
        run = bisect_right(self._positions, first)
        stop = bisect_left(self._positions, after)
        found = []
        before = first
        for each in range(run, stop):
            position = self._positions[each]
            behind = self._offsets[each - 1] + position - self._positions[each - 1]
            found.append((position - before, self._offsets[each] - behind))
            before = position
        return found

    # --- growing and shrinking ---

    def extend(self, first: int, count: int, state: int, lock: int = 0) -> None:
        """Append `count` records from this offset on, which is not below the end."""
        if first != self.end or not self._offsets:
            self._offsets.append(first)
            self._positions.append(self.top)
        self.records += bytes((state,)) * count
        self.locks.extend(array("I", (lock,)) * count)
        self.top += count
        self.end = first + count
        if state in states.FINISHED:
            self.finished += count

    def trim(self) -> bool:
        """Drop the finished records at the start; returns whether it moved."""
        records = self.records
        if not records or records[0] not in states.FINISHED:
            return False
        self._drop(len(records) - len(records.lstrip(states.FINISHED)))
        return True

    def cut(self, offset: int) -> None:
        """Drop every record below this offset, whatever its state."""
        if offset >= self.end:
            self._drop(len(self.records))
            self.end = offset
        elif offset > self.start:
            self._drop(self.position_from(offset) - self.base)

    def _drop(self, count: int) -> None:
        gone = self.records[:count]
        self.finished -= len(gone) - len(gone.translate(None, states.FINISHED))
        del self.records[:count]
        del self.locks[:count]
        self.base += count
        self.hint = max(self.hint, self.base)
        if not self.records:
            self._offsets.clear()
            self._positions.clear()
            return
        passed = bisect_right(self._positions, self.base) - 1
        if passed:
            del self._offsets[:passed]
            del self._positions[:passed]
        self._offsets[0] += self.base - self._positions[0]
        self._positions[0] = self.base

    # --- states ---

    def of(self, first: int, after: int) -> bytearray:
        """Return the states of the records at these positions."""
        return self.records[first - self.base : after - self.base]

    def put(self, first: int, after: int, changed: bytes | bytearray) -> None:
        self.records[first - self.base : after - self.base] = changed

    def locks_of(self, first: int, after: int) -> array[int]:
        return self.locks[first - self.base : after - self.base]

    def lock(self, first: int, after: int, number: int) -> None:
        self.locks[first - self.base : after - self.base] = array("I", (number,)) * (after - first)

    def finish(self, first: int, after: int, table: bytes) -> None:
        """Translate states, and count those that are finished by it."""
        before = self.of(first, after)
        changed = before.translate(table)
        self.put(first, after, changed)
        finished = states.FINISHED
        self.finished += len(before.translate(None, finished)) - len(
            changed.translate(None, finished)
        )

    def available_from(self, position: int, before: int) -> int | None:
        """Return the first position from here on, below `before`, that is available."""
        base = self.base
        found = states.find_available(self.records, position - base, before - base)
        return None if found is None else found.start() + base

    def alike(self, position: int, before: int) -> int:
        """Return the position behind the run of records like this one."""
        rest = self.of(position, before)
        return before - len(rest.lstrip(rest[:1]))

    def first_available(self) -> int | None:
        """Return the first available position, and remember it."""
        top = self.top
        if self.hint >= top:
            return None
        found = self.available_from(self.hint, top)
        self.hint = top if found is None else found
        return found

    def is_acquired(self, first: int, after: int) -> bool:
        """Check whether all these records are acquired."""
        return not self.of(first, after).translate(None, states.ALL_ACQUIRED)
