"""Which records of what was read a member gets.

First the available ones of the window, in their order; then what lies behind it. Records that were
delivered often come in fewer and fewer together, in the end one alone, so that a record that kills
its readers is found, and the others are delivered without it (KIP-932).
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.broker.share import states
from moldau.broker.share.acknowledging import MIXED, Segment
from moldau.broker.share.limits import AcquireMode, ShareLimits, Wish
from moldau.broker.share.locks import Lock
from moldau.broker.share.spans import Read, first_from
from moldau.broker.share.window import Window

Range = tuple[int, int, int]
"""First and last offset, and the delivery count."""


class Acquired(NamedTuple):
    ranges: list[Range]
    """Ascending; none holds an offset without a record."""
    records: int
    is_alone: bool
    """They were delivered often, so nothing else goes into the same reply."""


class Found(NamedTuple):
    ranges: list[Range]
    archiving: list[Segment]
    """Records at the limit of deliveries, which was lowered: to be stored as archived."""
    has_passed: bool
    """Records were found to be over: they may lie at the start."""
    is_alone: bool


def acquire(window: Window, lock: Lock, read: Read, wish: Wish, limits: ShareLimits) -> Found:
    taking = _Taking(window, lock, read, wish, limits)
    if read.first < window.end:
        taking.skip_absent()
        taking.take_available()
    if not taking.is_alone and taking.left > 0:
        taking.extend()
    return Found(taking.ranges, taking.archiving, taking.has_passed, taking.is_alone)


class _Taking:
    """One acquisition: `left` more records may be taken."""

    def __init__(
        self, window: Window, lock: Lock, read: Read, wish: Wish, limits: ShareLimits
    ) -> None:
        self.window = window
        self.lock = lock
        self.read = read
        self.wish = wish
        self.limits = limits
        self.left = wish.max_records
        self.ranges: list[Range] = []
        self.archiving: list[Segment] = []
        self.has_passed = False
        self.is_alone = False  # nothing else goes with these

    # --- in the window ---

    def skip_absent(self) -> None:
        """Archive what is available and cannot be delivered: offsets that are in no batch any more
        (compacted, lost), and batches that are not delivered (now that committed records are
        read)."""
        offset, end = self.read.first, self.window.end
        for span in self.read.spans:
            if offset >= end:
                return
            if span.first > offset:
                self._pass_over(offset, min(span.first, end))
            if not span.is_delivered:
                self._pass_over(max(span.first, self.read.first), min(span.last + 1, end))
            offset = span.last + 1
        if offset < min(self.read.end, end):
            self._pass_over(offset, min(self.read.end, end))

    def _pass_over(self, offset: int, end: int) -> None:
        first, after = self.window.position_from(offset), self.window.position_from(end)
        if first < after:
            self.window.finish(first, after, states.ABSENT)
            self.has_passed = True

    def take_available(self) -> None:
        window, limits = self.window, self.limits
        position = max(window.position_from(self.read.first), window.hint)
        before = window.position_from(self.read.end)
        follows_hint = window.first_available() == position
        while self.left > 0:
            found = window.available_from(position, before) if position < before else None
            if found is None:
                position = max(position, before)
                break
            after = window.alike(found, before)
            count = window.of(found, found + 1)[0]
            if count >= limits.delivery_count:
                self._archive(found, after)
                position = after
                continue
            if count >= limits.fewer_from:
                if self.ranges:
                    position = found
                    break
                self.is_alone = True
                size = 1 if count + 1 >= limits.delivery_count else max(1, (after - found) // 2)
                after = found + min(size, self.left)
            elif after - found > self.left:
                after = self._cut(found, after)
            self._take(found, after, count + 1)
            position = after
            if self.is_alone:
                break
        if follows_hint:
            window.hint = max(window.hint, position)

    def _archive(self, first: int, after: int) -> None:
        window = self.window
        window.finish(first, after, states.AT_LIMIT)
        window.lock(first, after, 0)
        limit = self.limits.delivery_count
        self.archiving.append(Segment(first, after, 0, MIXED, limit))

    def _cut(self, first: int, after: int) -> int:
        """Return the position where a run ends that is longer than what is left: exactly there, or
        where the last batch ends that has some of it."""
        exact = first + self.left
        if self.wish.mode is AcquireMode.RECORD_LIMIT:
            return exact
        window, spans = self.window, self.read.spans
        batch = first_from(spans, window.offset(exact - 1))
        if batch == len(spans):
            return exact
        return min(after, window.position_from(spans[batch].last + 1))

    def _take(self, first: int, after: int, count: int) -> None:
        window = self.window
        value = states.ACQUIRED | min(count, states.MAX_COUNT)
        window.put(first, after, bytes((value,)) * (after - first))
        window.lock(first, after, self.lock.number)
        self._note(first, after)
        for begin, last in window.pieces(first, after):
            if last - begin < self.wish.batch_size:
                self._add(begin, last, count)
            else:
                self._add_by_batches(begin, last, count)

    def _add_by_batches(self, first: int, last: int, count: int) -> None:
        spans = self.read.spans
        index = first_from(spans, first)
        while first <= last:
            end = min(last, spans[index].last) if index < len(spans) else last
            self._add(first, end, count)
            first = end + 1
            index += 1

    # --- behind the window ---

    def extend(self) -> None:
        """Take whole batches, until there are enough records or there is no room; the first one
        however large. By record limit not one more."""
        window, spans, wish = self.window, self.read.spans, self.wish
        is_exact = wish.mode is AcquireMode.RECORD_LIMIT
        left, room = self.left, self.limits.max_records - len(window)
        top = window.top
        begin = end = window.end  # a run of records that is yet to be taken
        for index in range(first_from(spans, end), len(spans)):
            if room <= 0:
                break
            first, last, is_delivered, _, _, _ = spans[index]
            if first < end:
                first = end
            count = last - first + 1
            if is_delivered:
                if left <= 0:
                    break
                if first != end or end - begin >= wish.batch_size:
                    self._take_new(begin, end)
                    begin = first
                if is_exact:
                    count = min(count, left, room)
                left -= count
            else:
                self._take_new(begin, end)
                window.extend(first, count, states.ARCHIVED)
                begin = first + count
                self.has_passed = True
            end = first + count
            room -= count
            if end <= last:
                break
        self._take_new(begin, end)
        if window.hint == top:
            window.hint = window.top

    def _take_new(self, begin: int, end: int) -> None:
        if begin == end:
            return
        window = self.window
        window.extend(begin, end - begin, states.ACQUIRED | 1, self.lock.number)
        self._add(begin, end - 1, 1)
        self._note(window.top - (end - begin), window.top)

    # --- both ---

    def _note(self, first: int, after: int) -> None:
        lock = self.lock
        if not lock.left:
            lock.first = first
        lock.after = after
        lock.left += after - first
        self.left -= after - first

    def _add(self, first: int, last: int, count: int) -> None:
        ranges = self.ranges
        if ranges:
            begin, end, its_count = ranges[-1]
            if end + 1 == first and its_count == count and (end - begin + 1 < self.wish.batch_size):
                ranges[-1] = (begin, last, count)
                return
        ranges.append((first, last, count))
