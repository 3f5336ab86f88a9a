"""Reads a log of a backup as a broker would: every batch, its checksum, its place. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from moldau.broker.log.state.log_state import LogState
from moldau.broker.store.streams import CleanPart, Entry
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.wire.batch import CONTROL, BatchHeader, checksum, split_batches
from moldau.broker.wire.batch import read_header as header_of

MOST_PROBLEMS = 5  # of one log; the first ones say enough


class Folded(msgspec.Struct):
    """What a log holds."""

    start: int = 0
    end: int = 0
    epoch: int = 0
    entries: int = 0  # of the live stream
    batches: int = 0
    records: int = 0
    markers: int = 0
    open_transactions: int = 0
    problems: list[str] = []


class LogFold:
    """Folds one log: first its cleaned part, then its live stream."""

    def __init__(self, start: int, epochs: Epochs, clean: CleanPart) -> None:
        self.found = Folded(start=start, epoch=epochs.current)
        self._epochs = epochs
        self._clean = clean
        self._state = LogState()

    def cleaned(self, entries: Iterable[Entry]) -> None:
        """Its offsets have gaps: compaction removes records."""
        count, after = 0, -1
        for entry in entries:
            count += 1
            try:
                for batch in split_batches(entry.blob):
                    header = self._batch(batch, 0)
                    if header.base_offset <= after:
                        self._problem(f"offset {header.base_offset} is not in order")
                    after = header.next_offset - 1
            except ValueError as fault:
                self._unreadable(entry, fault)
                return
        if self._clean.generation and count != self._clean.entries:
            self._problem(f"the cleaned part has {count} entries, not {self._clean.entries}")

    def live(self, entries: Iterable[Entry]) -> None:
        expected: int | None = None
        for entry in entries:
            self.found.entries += 1
            if expected is not None and entry.base != expected:
                expected = self._epochs.skip_gap(expected)
            if expected is not None and entry.base != expected:
                self._problem(f"offsets {expected} to {entry.base - 1} are missing")
            expected = entry.base
            try:
                for batch in split_batches(entry.blob):
                    header = self._batch(batch, self._clean.end)
                    # Beyond it: what was mirrored keeps its offsets, and the holes between them.
                    if header.base_offset < expected:
                        self._problem(
                            f"a batch at offset {expected} says that it is at {header.base_offset}"
                        )
                    expected = header.next_offset
                self._state.apply(entry.blob)
            except (ValueError, IndexError) as fault:
                self._unreadable(entry, fault)
                return

    def result(self) -> Folded:
        self._state.begin_epoch(self._epochs.start)
        self.found.end = max(self._state.end, self._clean.end, self.found.start)
        self.found.open_transactions = len(self._state.transactions.open)
        return self.found

    def _batch(self, batch: memoryview, count_from: int) -> BatchHeader:
        header = header_of(batch)
        start = self.found.start
        if header.next_offset <= start or header.base_offset < count_from:
            return header  # below the log start, or replaced by the cleaned part
        if checksum(batch) != header.crc:
            self._problem(f"the batch at offset {header.base_offset} has another checksum")
        self.found.batches += 1
        if header.attributes & CONTROL:
            self.found.markers += 1
        else:
            self.found.records += max(header.record_count - max(start - header.base_offset, 0), 0)
        return header

    def _unreadable(self, entry: Entry, fault: Exception) -> None:
        self._problem(f"the entry at offset {entry.base} cannot be read: {fault}")

    def _problem(self, text: str) -> None:
        if len(self.found.problems) < MOST_PROBLEMS:
            self.found.problems.append(text)
