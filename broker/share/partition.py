"""SharePartition: what of one partition is being delivered to whom, in one share group.

The shell reads the log, keeps the time, and stores what `begin_save` returns, one write at a time.
Two rules make a crash harmless: an acknowledgement is answered once it is stored, and a record
that may have been acknowledged is with its member, or on its way, until the outcome is known.

Every step works on runs of records: slices, `translate`, no loop over records. Looking for records
to acquire is `acquiring.py`, checking an acknowledgement `acknowledging.py`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.share import acknowledging, acquiring, state, states
from moldau.broker.share.acknowledging import MIXED, Segment
from moldau.broker.share.acquiring import Acquired
from moldau.broker.share.effects import Archived, Decided, Effect, Expired
from moldau.broker.share.limits import ShareLimits, Wish
from moldau.broker.share.locks import Lock, Locks
from moldau.broker.share.spans import Read
from moldau.broker.share.views import PartitionView, RunView
from moldau.broker.share.window import Window

FLUSH_MS = 1_000
"""What nobody waits for is stored with the next write, after this time at the latest."""


class _Write(NamedTuple):
    """What waits for the same write."""

    segments: list[Segment]
    calls: list[object]
    has_start: bool
    """Whether a start is stored with it."""


class SharePartition:
    """`is_woken` is set when something may be acquired that could not be before; the shell takes
    it back. Raise nothing: whoever calls has checked what clients sent."""

    def __init__(self, stored: bytes = b"") -> None:
        """`stored` is what the store has; empty: nothing yet. Raises CorruptState."""
        self._window = state.decode(stored)
        self._locks = Locks()
        self._effects: list[Effect] = []
        self._next = _Write([], [], has_start=False)
        self._flying: _Write | None = None
        self._is_start_stored = self._window is not None
        self._is_urgent = False
        self._flush_at: int | None = None
        self.is_woken = False

    # --- looking ---

    @property
    def start(self) -> int:
        """The offset before which everything is finished and stored; -1: not resolved."""
        return state.UNRESOLVED if self._window is None else self._window.start

    @property
    def end(self) -> int:
        """The offset behind the last record that was handed out."""
        return state.UNRESOLVED if self._window is None else self._window.end

    @property
    def is_resolved(self) -> bool:
        return self._window is not None

    @property
    def is_saving(self) -> bool:
        return self._flying is not None

    @property
    def finished(self) -> int:
        return 0 if self._window is None else self._window.finished

    def __len__(self) -> int:
        """The number of records between start and end."""
        return 0 if self._window is None else len(self._window)

    def next_deadline(self) -> int | None:
        """Return when the next lock ends."""
        return self._locks.next_deadline()

    def save_at(self) -> int | None:
        """Return when the next write is to begin: 0 for at once, None if there is nothing to
        store. While one is in flight it waits."""
        return 0 if self._is_urgent else self._flush_at

    def view(self, now_ms: int, max_runs: int) -> PartitionView:
        window = self._window
        if window is None:
            return PartitionView(state.UNRESOLVED, state.UNRESOLVED, 0, 0, [])
        held = len(window.records) - len(window.records.translate(None, states.HELD))
        runs: list[RunView] = []
        position, top = window.base, window.top
        while position < top and len(runs) < max_runs:
            value = window.of(position, position + 1)[0]
            number = window.locks_of(position, position + 1)[0]
            after = window.alike(position, top)
            if value in states.HELD:
                numbers = window.locks_of(position, after)
                same = next((n for n, each in enumerate(numbers) if each != number), len(numbers))
                after = position + same
                lock = self._locks.get(number)
            else:
                lock = None
            member = "" if lock is None or lock.has_ended else lock.member
            left = max(0, lock.deadline_ms - now_ms) if lock is not None and member else 0
            name, count = states.NAMES[value & states.STATE], value & states.COUNT
            for first, last in window.pieces(position, after):
                runs.append(RunView(first, last, name, count, member, left))
            position = after
        return PartitionView(window.start, window.end, held, window.finished, runs[:max_runs])

    # --- the log ---

    def resolve(self, start: int) -> None:
        """Begin at this offset. Nothing is acquired before this is stored: after a crash, `latest`
        would be another one."""
        if self._window is None:
            self._window = Window(start)
            self._is_urgent = True

    def log_start_moved(self, offset: int, now_ms: int) -> None:
        """Follow the start of the log: what is below it is over, acknowledged or not."""
        window = self._window
        if window is None or offset <= window.start:
            return
        after = window.position_from(offset) if offset < window.end else window.top
        self._let_go(window.base, after)
        window.cut(offset)
        window.trim()
        self.is_woken = True
        self._flush_by(now_ms + FLUSH_MS)

    def wanted(self, limits: ShareLimits) -> int | None:
        """Return the offset from which on to read; None if there is nothing to acquire."""
        window = self._window
        if window is None or not self._is_start_stored:
            return None
        position = window.first_available()
        if position is not None:
            return window.offset(position)
        return window.end if len(window) < limits.max_records else None

    # --- members ---

    def acquire(
        self, read: Read, member: str, wish: Wish, limits: ShareLimits, now_ms: int
    ) -> Acquired | None:
        """Hand records of what was read to a member, under one lock. None: there are none."""
        window = self._window
        if window is None or not self._is_start_stored or read.first > window.end:
            return None
        lock = self._locks.add(member, now_ms + limits.lock_ms, window.base)
        found = acquiring.acquire(window, lock, read, wish, limits)
        if found.archiving:
            self._next.segments.extend(found.archiving)
            self._is_urgent = True
        if found.has_passed:
            window.trim()
            self._flush_by(now_ms + FLUSH_MS)
        if not lock.left:
            self._locks.let_go(lock.number, 0)
            return None
        return Acquired(found.ranges, lock.left, found.is_alone)

    def acknowledge(
        self,
        call: object,
        member: str,
        batches: Sequence[tuple[int, int, bytes]],
        limits: ShareLimits,
        now_ms: int,
    ) -> ErrorCode | None:
        """Take a member's acknowledgements, together or not at all.

        A batch is a first and a last offset, and one type for all or one for each; they ascend.
        Returns the outcome; None if it is known when the write has ended (`Decided`).
        """
        window = self._window
        if window is None:
            return ErrorCode.INVALID_REQUEST if batches else ErrorCode.NONE
        checked = acknowledging.check(window, self._locks, member, batches, limits)
        if isinstance(checked, ErrorCode):
            return checked
        has_outcomes = False
        renewed: Lock | None = None
        for part in checked:
            if part.types == acknowledging.RENEW_ALL:
                if renewed is None:
                    renewed = self._locks.add(member, now_ms + limits.lock_ms, part.first)
                self._renew(part.first, part.after, renewed)
            else:
                self._next.segments.append(acknowledging.apply(window, part, limits))
                has_outcomes = True
        if not has_outcomes:
            return ErrorCode.NONE  # renewed, or below the start: there is nothing to store
        self._next.calls.append(call)
        self._is_urgent = True
        return None

    def _renew(self, first: int, after: int, lock: Lock) -> None:
        assert self._window is not None
        for number, count in Counter(self._window.locks_of(first, after)).items():
            self._locks.let_go(number, count)
        self._window.lock(first, after, lock.number)
        lock.first = min(lock.first, first)
        lock.after = max(lock.after, after)
        lock.left += after - first

    def expire(self, limits: ShareLimits, now_ms: int) -> None:
        """End the locks whose time is over."""
        ended = self._locks.overdue(now_ms)
        count = sum(self._end(lock, limits) for lock in ended)
        if count:
            self._effects.append(Expired(count))
            self._flush_by(now_ms + FLUSH_MS)

    def leave(self, member: str, limits: ShareLimits, now_ms: int) -> None:
        """Release what a member has: its session is over."""
        if sum(self._end(lock, limits) for lock in self._locks.of_member(member)):
            self._flush_by(now_ms + FLUSH_MS)

    def postpone(self, by_ms: int) -> None:
        """Move all locks' deadlines: the worker was held up, and acknowledgements may wait in its
        sockets."""
        self._locks.postpone(by_ms)

    def _end(self, lock: Lock, limits: ShareLimits) -> int:
        """End a lock; returns how many records were acquired under it."""
        window = self._window
        assert window is not None
        lock.has_ended = True
        ended = 0
        for first, after in self._held_by(lock):
            self._give_back(first, after, limits)
            ended += after - first
        self._locks.let_go(lock.number, ended)
        return ended

    def _held_by(self, lock: Lock) -> list[tuple[int, int]]:
        """Return the positions that are acquired under a lock, as runs."""
        window = self._window
        assert window is not None
        first, after = max(lock.first, window.base), min(lock.after, window.top)
        if first >= after:
            return []
        number = lock.number
        numbers = window.locks_of(first, after)
        if numbers == array("I", (number,)) * len(numbers) and window.is_acquired(first, after):
            return [(first, after)]
        runs: list[tuple[int, int]] = []
        begin: int | None = None
        values = window.of(first, after)
        for position, (value, each) in enumerate(zip(values, numbers, strict=True), first):
            if each == number and value & states.STATE == states.ACQUIRED:
                if begin is None:
                    begin = position
            elif begin is not None:
                runs.append((begin, position))
                begin = None
        if begin is not None:
            runs.append((begin, after))
        return runs

    def _give_back(self, first: int, after: int, limits: ShareLimits) -> None:
        """Make acquired records available, or archive those at the limit."""
        window = self._window
        assert window is not None
        changed = window.of(first, after).translate(states.expired(limits.delivery_count))
        window.put(first, after, changed)
        window.lock(first, after, 0)
        window.hint = min(window.hint, first)
        for found in states.archiving_runs(changed):
            begin, end = first + found.start(), first + found.end()
            self._next.segments.append(Segment(begin, end, 0, MIXED, limits.delivery_count))
            self._is_urgent = True
        self.is_woken = True

    def _let_go(self, first: int, after: int) -> None:
        """Take records that are acquired or in transit from their locks."""
        window = self._window
        assert window is not None
        held = Counter(
            number
            for value, number in zip(
                window.of(first, after), window.locks_of(first, after), strict=True
            )
            if value in states.HELD
        )
        for number, count in held.items():
            self._locks.let_go(number, count)

    # --- writes ---

    def begin_save(self) -> bytes:
        """Return what is to be stored now; `saved` or `save_failed` says what came of it."""
        assert self._flying is None
        segments, calls, _ = self._next
        self._flying = _Write(segments, calls, has_start=self._window is not None)
        self._next = _Write([], [], has_start=False)
        self._is_urgent = False
        self._flush_at = None
        return state.encode(self._window)

    def saved(self) -> None:
        """What `begin_save` returned is stored."""
        write = self._landed()
        window = self._window
        if window is None:
            return
        if write.has_start and not self._is_start_stored:
            self._is_start_stored = self.is_woken = True
        for segment in write.segments:
            first, after = max(segment.first, window.base), segment.after
            if first < after:
                self._settle(segment, first, after)
        if window.trim():
            self.is_woken = True
        self._effects.extend(Decided(call, ErrorCode.NONE) for call in write.calls)

    def _settle(self, segment: Segment, first: int, after: int) -> None:
        window = self._window
        assert window is not None
        before = window.of(first, after)
        if len(before.translate(None, states.ALL_ARCHIVING)) < after - first:
            self._note_archived(segment, before, first)
        if segment.type in (states.RELEASE, MIXED):
            window.hint = min(window.hint, first)
            self.is_woken = True
        if segment.lock:
            self._locks.let_go(segment.lock, after - first)
        else:
            for number, count in Counter(window.locks_of(first, after)).items():
                self._locks.let_go(number, count)
        window.finish(first, after, states.FINAL)

    def _note_archived(self, segment: Segment, before: bytearray, first: int) -> None:
        assert self._window is not None
        if segment.type == states.GAP:
            return  # there is no record
        for found in states.archiving_runs(before):
            position, end = first + found.start(), first + found.end()
            while position < end:
                after = min(end, self._window.alike(position, end))
                count = before[position - first] & states.COUNT
                is_limit = segment.type == states.RELEASE or (
                    segment.type == MIXED and count >= segment.limit
                )
                self._effects.extend(
                    Archived(begin, last, count, is_limit)
                    for begin, last in self._window.pieces(position, after)
                )
                position = after

    def save_failed(self, code: ErrorCode, limits: ShareLimits, now_ms: int) -> None:
        """The write was refused, or its outcome is unknown: memory decides. What is still locked is
        acquired again; the rest is what the end of its lock would have made of it."""
        write = self._landed()
        window = self._window
        if not self._is_start_stored or write.segments:
            self._flush_by(now_ms + FLUSH_MS)
        if window is not None:
            for segment in write.segments:
                first, after = max(segment.first, window.base), segment.after
                if first < after:
                    self._take_back(first, after, limits)
        self._effects.extend(Decided(call, code) for call in write.calls)

    def _take_back(self, first: int, after: int, limits: ShareLimits) -> None:
        window = self._window
        assert window is not None
        window.put(first, after, window.of(first, after).translate(states.BACK))
        numbers = window.locks_of(first, after)
        begin = 0
        while begin < len(numbers):
            number, end = numbers[begin], begin + 1
            while end < len(numbers) and numbers[end] == number:
                end += 1
            lock = self._locks.get(number)
            if lock is None or lock.has_ended:
                self._locks.let_go(number, end - begin)
                was_urgent = self._is_urgent
                self._give_back(first + begin, first + end, limits)
                self._is_urgent = was_urgent  # the store has just failed: in a while
            begin = end

    def _landed(self) -> _Write:
        assert self._flying is not None
        write, self._flying = self._flying, None
        return write

    def _flush_by(self, at_ms: int) -> None:
        if self._flush_at is None or self._flush_at > at_ms:
            self._flush_at = at_ms

    def refuse_all(self, code: ErrorCode) -> None:
        """Answer all that wait: this machine is given up."""
        for write in (self._flying, self._next):
            if write is not None:
                self._effects.extend(Decided(call, code) for call in write.calls)
        self._flying = None
        self._next = _Write([], [], has_start=False)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
