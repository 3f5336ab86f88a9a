"""The transactions of a log as its fold knows them: which are open, which were aborted. Pure.

A transaction opens with its producer's first batch and ends with a marker. What lies below the
first open one is stable: the end of it is the last stable offset, up to which read_committed
consumers read. They skip aborted batches themselves; a Fetch lists the aborted transactions that
reach into what it returns.

The newest aborted transactions are in memory, all of them in the store (`…:aborted`), where a
snapshot leaves them: those that end after a snapshot are found again by reading the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from moldau.broker.store.aborted import AbortedTransaction

HELD_IN_MEMORY = 4096  # aborted transactions of one log that the store has as well
_marker_of = attrgetter("marker")


class OpenTransaction(NamedTuple):
    first: int  # offset
    size_before: int  # bytes of the log before it


class LogTransactions:
    """The transactions of one log. Costs a few comparisons while no producer is transactional."""

    __slots__ = ("_saved_to", "aborted", "held_from", "open")

    def __init__(self) -> None:
        # By producer id. In the order of their offsets, as transactions open at the end of the log.
        self.open: dict[int, OpenTransaction] = {}
        self.aborted: list[AbortedTransaction] = []  # by marker
        self.held_from = 0  # markers from here on are in `aborted`; 0: there are no others
        self._saved_to = 0  # those with a marker below it are in the store as well

    def stable_end(self, end: int) -> int:
        """The last stable offset of a log that ends at `end`."""
        for opened in self.open.values():
            return opened.first
        return end

    def stable_size(self, size: int) -> int:
        """The bytes below it, of a log with `size` bytes."""
        for opened in self.open.values():
            return opened.size_before
        return size

    @property
    def has_aborted(self) -> bool:
        return bool(self.aborted or self.held_from)

    # --- folding ---

    def begin(self, producer_id: int, first: int, size_before: int) -> None:
        self.open[producer_id] = OpenTransaction(first, size_before)

    def end(self, producer_id: int, marker: int, *, commit: bool) -> None:
        opened = self.open.pop(producer_id, None)
        if opened is not None and not commit:
            stable = self.stable_end(marker + 1)
            self.aborted.append(AbortedTransaction(marker, opened.first, producer_id, stable))
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        surplus = len(self.aborted) - HELD_IN_MEMORY
        if surplus >= HELD_IN_MEMORY // 4:  # not one at a time: a list is shortened at its front
            dropped = min(surplus, self._before(self._saved_to))
            if dropped > 0:
                self.held_from = self.aborted[dropped - 1].marker + 1
                del self.aborted[:dropped]

    # --- what the store has to be given ---

    def unsaved(self) -> list[AbortedTransaction]:
        return self.aborted[self._before(self._saved_to) :]

    def saved(self, aborted: Sequence[AbortedTransaction]) -> None:
        """The store has these now. Two may save the same ones at once."""
        if aborted:
            self._saved_to = max(self._saved_to, aborted[-1].marker + 1)
            self._forget_oldest()

    def drop_before(self, offset: int) -> None:
        """Those with a marker below it are behind the log start, or in what was compacted."""
        if self.aborted and self.aborted[0].marker < offset:
            del self.aborted[: self._before(offset)]

    def _before(self, marker: int) -> int:
        """How many of `aborted` have a marker below it."""
        return bisect_left(self.aborted, marker, key=_marker_of)

    # --- for a Fetch ---

    def aborted_within(self, offset: int, end: int) -> list[AbortedTransaction] | None:
        """The aborted transactions that overlap `offset` to `end`, by first offset.

        None: some may be known to the store only.
        """
        if offset < self.held_from:
            return None
        return overlapping(islice(self.aborted, self._before(offset), None), end)


def overlapping(aborted: Iterable[AbortedTransaction], end: int) -> list[AbortedTransaction]:
    """Choose the transactions that begin below `end`; `aborted` is in the order of markers."""
    found = []
    for transaction in aborted:
        if transaction.first < end:
            found.append(transaction)
        if transaction.stable >= end:
            break
    found.sort(key=attrgetter("first"))
    return found
