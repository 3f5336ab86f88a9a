"""How much room a data directory's file system has, and when there is too little. Pure but for
`Room.of`.

    free space   ├── reserve ──┤── runway ──┤── min_free ──┤── what producers may fill ──┤
                  given up to     allocated     below this mark writes are refused
                  write what      for the
                  has failed      file's end

The reserve and the runway are allocated, so no other program can take them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

MIB = 1 << 20
MOST_MIN_FREE, LEAST_SHARE = 256 * MIB, 10  # a tenth of a small file system
MOST_RUNWAY, RUNWAY_SHARE = 64 * MIB, 8
MOST_RESERVE, RESERVE_SHARE = 32 * MIB, 40
AMPLE, LEAST_AMPLE = 4, 1 << 30  # times the mark, and bytes
MOST_IF_SHORT = 256 * MIB
LOOK_SECONDS, LOOK_OFTEN_SECONDS, LEAST_SECONDS = 0.25, 0.1, 0.01


class Room(NamedTuple):
    """Room on a file system, for a user without privileges."""

    free: int
    total: int

    @classmethod
    def of(cls, directory: Path) -> Self:
        facts = os.statvfs(directory)
        return cls(facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)


class Marks(NamedTuple):
    """See the module. Sizes in bytes."""

    min_free: int
    runway: int
    reserve: int
    ample: int  # so much free space is not filled between two looks at it

    @classmethod
    def of(cls, total: int, min_free: int | None = None) -> Self:
        """`min_free`: the operator's own; None: by the size of the file system."""
        usual = min(MOST_MIN_FREE, total // LEAST_SHARE)
        if min_free is None:
            min_free = usual
        return cls(
            min_free,
            runway=min(MOST_RUNWAY, total // RUNWAY_SHARE),
            reserve=min(MOST_RESERVE, total // RESERVE_SHARE),
            ample=max(AMPLE * max(min_free, usual), LEAST_AMPLE),
        )

    @property
    def margin(self) -> int:
        """What the server may write in one turn, by which a file can end before its runway when
        that was too short for the turn's writes."""
        return self.runway // 4

    @property
    def enough_again(self) -> int:
        """Free bytes at which writes are taken again: not where they were refused, or retention
        and producers would take turns."""
        return self.min_free + self.min_free // 4

    def refuses(self, free: int, *, refused: bool) -> bool:
        """Are writes to be refused? `refused`: they have been so far."""
        return free < (self.enough_again if refused else self.min_free)

    def runway_for(self, grown_per_s: float, free: int) -> int:
        """How far ahead of the file's end to allocate: a second's growth. If there is little room,
        half of it: producers may then use no more than that between two looks."""
        spare = max(free - self.min_free, 0) // 2
        wanted = int(grown_per_s) if free >= self.ample else MOST_IF_SHORT
        return max(self.runway, min(wanted, spare))

    def growth(self, free: int, ahead: int) -> int:
        """How much memory the server may take before the disk is looked at again, at most.

        `ahead`: what is allocated beyond the end of its file. If there is little room it may use no
        more than that, whatever another program does to the disk meanwhile. Half of it, since a
        small record takes up to twice as much of the file as of memory.
        """
        if free >= self.ample:
            return (free - self.min_free) // 2
        return max(ahead - self.margin, self.margin) // 2

    def look_again_s(self, grown_per_s: float, free: int) -> float:
        """When to look again: before a quarter of the runway is used up."""
        longest = LOOK_SECONDS if free >= self.ample else LOOK_OFTEN_SECONDS
        runway = self.runway_for(grown_per_s, free)
        return max(min(longest, runway / (4 * max(grown_per_s, 1.0))), LEAST_SECONDS)
