"""Stream ids and offsets of native topics: `offset = (ms << bits) | seq`. Pure.

An id whose sequence does not fit the bits (a Redis application wrote many entries in one
millisecond, or chose its ids itself) is still delivered: it stands at the last offset of its
millisecond or, where that is taken, right after the entry before it; entries behind it move up as
long as there is no room. Where that begins and ends is noted beside the stream (`Mark`), so that
any such offset is found again; a stream whose ids fit has no marks and costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

MOST_SEQUENCE = (1 << 64) - 1
MARK_EVERY = 512  # entries that moved up: so many are read in vain to find an offset among them


class Id(NamedTuple):
    ms: int
    seq: int

    def __bytes__(self) -> bytes:
        return b"%d-%d" % self

    @property
    def before(self) -> Id:
        """The id right below."""
        if self.seq:
            return Id(self.ms, self.seq - 1)
        return Id(self.ms - 1, MOST_SEQUENCE) if self.ms else self

    @property
    def after(self) -> Id:
        return Id(self.ms, self.seq + 1) if self.seq < MOST_SEQUENCE else Id(self.ms + 1, 0)


def parse(raw: bytes) -> Id:
    ms, _, seq = raw.partition(b"-")
    return Id(int(ms), int(seq))


class Mark(NamedTuple):
    """From this entry on offsets are not what ids say; at an `end`, they are again."""

    offset: int
    id: Id
    is_end: bool

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
        self.marks: list[Mark] = []

    def fits(self, entry_id: Id) -> bool:
        return entry_id.seq <= self._mask

    def natural(self, entry_id: Id) -> int:
        """The offset an id stands for; of one that does not fit, the last of its millisecond."""
        return (entry_id.ms << self.bits) + min(entry_id.seq, self._mask)

    def id_at(self, offset: int) -> Id:
        return Id(offset >> self.bits, offset & self._mask)

    def end_after(self, last: Id) -> int:
        """The offset after the stream's last id."""
        if last == (0, 0):
            return 0
        end = self.natural(last) + 1
        if self.marks:
            end = max(end, self.marks[-1].offset + (0 if self.marks[-1].is_end else 1))
        return end

    def note(self, marks: list[Mark]) -> None:
        self.marks = sorted({*self.marks, *marks})

    def start_at(self, offset: int) -> Run:
        """Where to read from to get everything at `offset` and above."""
        index = bisect_right(self.marks, offset, key=lambda mark: mark.offset)
        if index and not self.marks[index - 1].is_end:
            mark = self.marks[index - 1]
            return Run(self, mark.id, mark.offset - 1, offset, moved=True)
        return Run(self, self.id_at(offset), offset - 1, offset, moved=False)


class Run:
    """Gives the entries of a stream their offsets, from a starting point on, in order."""

    def __init__(
        self, numbering: Numbering, first: Id, last_offset: int, wanted: int, *, moved: bool
    ) -> None:
        self._numbering = numbering
        self.first = first
        self._last = last_offset
        self._wanted = wanted
        self._moved = moved
        self._since_mark = 0
        self.marks: list[Mark] = []  # to be noted before anybody is shown these offsets
        self.misfits = 0

    def offset_of(self, entry_id: Id) -> int | None:
        """The offset of the next entry; None for one that is before the wanted offset."""
        numbering = self._numbering
        natural = numbering.natural(entry_id)
        offset = natural if natural > self._last else self._last + 1
        if offset != natural or not numbering.fits(entry_id):
            self._note_moved(offset, entry_id, numbering.fits(entry_id))
        elif self._moved:
            self._moved = False
            self.marks.append(Mark(offset, entry_id, is_end=True))
        self._last = offset
        return offset if offset >= self._wanted else None

    def _note_moved(self, offset: int, entry_id: Id, fits: bool) -> None:
        if not fits:
            self.misfits += 1
        if not self._moved or self._since_mark >= MARK_EVERY:
            self.marks.append(Mark(offset, entry_id, is_end=False))
            self._since_mark = 0
        self._moved = True
        self._since_mark += 1
