"""The transactions of a log as its fold knows them: which are open, which were aborted. Pure.

A transaction opens with its producer's first batch and ends with a marker. What lies below the
first open one is stable: the end of it is the last stable offset, up to which read_committed
consumers read. They skip aborted batches themselves; a Fetch lists the aborted transactions that
reach into what it returns.

The newest aborted transactions are in memory, all of them in the store (`…:aborted`), where a
snapshot of the fold leaves them: what is folded after a snapshot is found again by folding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from broker.store.aborted import AbortedTransaction

HELD_IN_MEMORY = 4096  # aborted transactions of one log that the store has as well
_marker_of = attrgetter("marker")


class OpenTransaction(NamedTuple):
    first: int  # offset
    size_before: int  # bytes of the log before it


class LogTransactions:
    """Of one log. Empty, and a few comparisons, as long as no producer is transactional."""

    __slots__ = ("_unsaved", "aborted", "held_from", "open")

    def __init__(self) -> None:
        # By producer id. In the order of their offsets, as transactions open at the end of the log.
        self.open: dict[int, OpenTransaction] = {}
        self.aborted: list[AbortedTransaction] = []  # by marker
        self.held_from = 0  # markers from here on are in `aborted`; 0: there are no others
        self._unsaved = 0  # the last so many of them are not in the store yet

    def stable_end(self, end: int) -> int:
        """Of a log that ends at `end`."""
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
            self._unsaved += 1
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        surplus = len(self.aborted) - HELD_IN_MEMORY
        if surplus >= HELD_IN_MEMORY // 4:  # not one at a time: a list is shortened at its front
            dropped = min(surplus, len(self.aborted) - self._unsaved)
            if dropped > 0:
                self.held_from = self.aborted[dropped - 1].marker + 1
                del self.aborted[:dropped]

    # --- what the store has to be given ---

    def unsaved(self) -> list[AbortedTransaction]:
        return self.aborted[-self._unsaved :] if self._unsaved else []

    def saved(self, count: int) -> None:
        """The oldest so many of them are in the store now."""
        self._unsaved -= count
        self._forget_oldest()

    def drop_before(self, start: int) -> None:
        """The log start has passed these."""
        gone = bisect_left(self.aborted, start, key=_marker_of)
        gone = min(gone, len(self.aborted) - self._unsaved)
        if gone:
            del self.aborted[:gone]

    # --- for a Fetch ---

    def aborted_within(self, offset: int, end: int) -> list[AbortedTransaction] | None:
        """Those that reach into what is read from `offset` to `end`, by first offset.

        None: some may be known to the store only.
        """
        if offset < self.held_from:
            return None
        at = bisect_left(self.aborted, offset, key=_marker_of)
        return overlapping(islice(self.aborted, at, None), end)


def overlapping(aborted: Iterable[AbortedTransaction], end: int) -> list[AbortedTransaction]:
    """Of transactions in the order of their markers, those that begin below `end`."""
    found = []
    for transaction in aborted:
        if transaction.first < end:
            found.append(transaction)
        if transaction.stable >= end:
            break
    found.sort(key=attrgetter("first"))
    return found
