"""Stream ids and offsets of native topics: `offset = (ms << bits) | seq`. Pure.

An id whose sequence does not fit the bits (a Redis application wrote many entries in one
millisecond, or chose its ids itself) is still delivered: at the offset its sequence leads to, which
is among those of the milliseconds after it, and entries behind it move up as long as there is no
room. Such offsets are noted beside the stream (`Mark`), one for each millisecond they are in, so
that each is found again whatever was removed meanwhile. A stream whose ids fit has no marks and
pays nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from moldau.broker.store.stream_ids import MAX_SEQUENCE, Id, parse

MISFIT_BITS = 6  # a sequence may be this many bits too large and still determine the offset


class Mark(NamedTuple):
    """The offset of an entry, and so of those behind it in its millisecond, where it does not
    follow from the id. From an `end` on it does again."""

    offset: int
    id: Id
    is_end: bool

    def offset_of(self, entry_id: Id) -> int:
        return self.offset + entry_id.seq - self.id.seq

    def __bytes__(self) -> bytes:
        # Padded, so that the store's lexical order is the order of offsets.
        return b"%020d:%b:%d" % (self.offset, bytes(self.id), self.is_end)


def parse_mark(raw: bytes) -> Mark:
    offset, entry_id, is_end = raw.split(b":")
    return Mark(int(offset), parse(entry_id), is_end == b"1")


class Numbering:
    """Offsets of a stream with so many bits for the sequence."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._mask = (1 << bits) - 1
        self._widest = (1 << bits + MISFIT_BITS) - 1
        self.noted: set[Mark] = set()
        self.marks: list[Mark] = []  # of those noted the ones that count, by offset and so by id

    def fits(self, entry_id: Id) -> bool:
        return entry_id.seq <= self._mask

    def natural(self, entry_id: Id) -> int:
        """The offset of an id, if the entries before it leave it free."""
        return (entry_id.ms << self.bits) + min(entry_id.seq, self._widest)

    def id_at(self, offset: int) -> Id:
        return Id(offset >> self.bits, offset & self._mask)

    def mark_of(self, entry_id: Id) -> Mark | None:
        """The mark with the offset of an entry."""
        index = bisect_right(self.marks, entry_id, key=lambda mark: mark.id)
        mark = self.marks[index - 1] if index else None
        return mark if mark is not None and self.covers(mark, entry_id) else None

    def covers(self, mark: Mark, entry_id: Id) -> bool:
        """Does a mark at or before an entry determine its offset?"""
        near = mark.id.ms == entry_id.ms and entry_id.seq - mark.id.seq <= self._widest
        return near and not mark.is_end

    def offset_of(self, entry_id: Id) -> int:
        """The offset of an entry as far as it is known."""
        mark = self.mark_of(entry_id)
        return self.natural(entry_id) if mark is None else mark.offset_of(entry_id)

    def offset_from(self, entry_id: Id) -> int:
        """An offset from which an entry is read: its own or, where that is not noted, one before
        it, but of the same millisecond."""
        if self.fits(entry_id) or self.mark_of(entry_id) is not None:
            return self.offset_of(entry_id)
        return (entry_id.ms << self.bits) + self._mask

    def offset_behind(self, entry_id: Id) -> int:
        """An offset from which everything behind an entry is read."""
        if self.fits(entry_id) or self.mark_of(entry_id) is not None:
            return self.offset_of(entry_id) + 1
        return self.offset_from(entry_id)

    def end_after(self, last: Id) -> int:
        """The offset after the stream's last id."""
        if last == (0, 0):
            return 0
        end = self.offset_of(last) + 1
        if self.marks:
            end = max(end, self.marks[-1].offset + (0 if self.marks[-1].is_end else 1))
        return end

    def note(self, marks: Iterable[Mark]) -> None:
        """Several workers may have numbered the same entries from different starting points, before
        they knew of each other. The mark that leads to the earliest entry counts: nothing is left
        out, something is perhaps read twice."""
        self.noted.update(marks)
        kept: list[Mark] = []
        for mark in sorted(self.noted, reverse=True):
            if kept and mark.offset == kept[-1].offset:
                kept.pop()  # this one's id is smaller
            if not kept or mark.id < kept[-1].id:
                kept.append(mark)
        self.marks = []
        for mark in reversed(kept):
            before = self.marks[-1] if self.marks else None
            if before is None or not (
                self.covers(before, mark.id) and before.offset_of(mark.id) >= mark.offset
            ):
                self.marks.append(mark)

    def contradicting(self, offset: int, entry_id: Id) -> Mark | None:
        """A mark at an offset or before it, but of an entry behind the one that is there."""
        index = bisect_right(self.marks, offset, key=lambda mark: mark.offset)
        mark = self.marks[index - 1] if index else None
        return mark if mark is not None and mark.id > entry_id else None

    def start_at(self, offset: int) -> Run:
        """Where to read from to get everything at `offset` and above."""
        index = bisect_right(self.marks, offset, key=lambda mark: mark.offset)
        if (
            index > 1
            and self.marks[index - 1].offset == offset
            and not self.marks[index - 2].is_end
        ):
            # Noted by a worker that started behind entries which are not numbered here yet, and
            # which have no room before it: read on from the mark before.
            index -= 1
        mark = self.marks[index - 1] if index and not self.marks[index - 1].is_end else None
        first = self.id_at(offset)
        if mark is not None:
            sequence = mark.id.seq + offset - mark.offset
            fits = sequence <= MAX_SEQUENCE
            first = Id(mark.id.ms, sequence) if fits else Id(mark.id.ms + 1, 0)
        elif first.seq == 0 and first.ms:
            # A client that has read up to the last id that fits a millisecond gets those behind it.
            first = Id(first.ms - 1, self._mask + 1)
        if index < len(self.marks):
            first = min(first, self.marks[index].id)  # it stands above the offset, too
        return Run(self, first, offset, mark)


class Run:
    """Assigns offsets to the entries of a stream, in order from a starting point on."""

    def __init__(self, numbering: Numbering, first: Id, offset: int, mark: Mark | None) -> None:
        self._numbering = numbering
        self.bits = numbering.bits
        self.first = first
        self._last = offset - 1
        self._mark = mark  # of the entry before; None: its offset followed from its id
        self.marks: list[Mark] = []  # to be noted before a client gets these offsets
        self._overruled: Mark | None = None
        self.misfits = 0

    @property
    def least_plain(self) -> int:
        """The offset from which on an id that fits is its own offset; -1: never.

        A caller with many entries may number these itself, and report it with `go_on`.
        """
        return -1 if self._mark is not None or self._numbering.marks else self._last + 1

    def go_on(self, last: int) -> None:
        self._last = last

    def offset_of(self, entry_id: Id) -> int:
        """The offset of the next entry."""
        numbering = self._numbering
        fits = numbering.fits(entry_id)
        if not fits:
            self.misfits += 1
        offset = natural = numbering.natural(entry_id)
        if fits and self._mark is None and not numbering.marks and natural > self._last:
            self._last = natural  # as nearly always
            return natural
        mark = numbering.mark_of(entry_id)
        ours = self._mark
        if (
            ours is not None
            and numbering.covers(ours, entry_id)
            # As `note` decides when it knows of both.
            and (mark is None or mark.id <= ours.id or ours.offset_of(mark.id) >= mark.offset)
        ):
            mark = ours
        if mark is not None and mark.offset_of(entry_id) > self._last:
            offset = mark.offset_of(entry_id)
            if self._overrules(offset, entry_id):
                self.marks.append(Mark(offset, entry_id, is_end=False))
        elif natural > self._last and fits:
            if self._mark is not None or self._overrules(natural, entry_id):
                self.marks.append(Mark(natural, entry_id, is_end=True))
            mark = None
        else:
            offset = max(natural, self._last + 1)
            mark = Mark(offset, entry_id, is_end=False)
            self.marks.append(mark)
        self._mark = mark
        self._last = offset
        return offset

    def _overrules(self, offset: int, entry_id: Id) -> bool:
        """Is something else noted here that has to be overruled by a mark (see `note`)?"""
        other = self._numbering.contradicting(offset, entry_id)
        if other is None or other == self._overruled:
            return False
        self._overruled = other
        return True
