"""Leader epochs of a log, and the gaps in its offsets. Pure: no I/O.

A log whose store may have lost its end continues above every offset that was ever given out, in a
new leader epoch. So an offset names one record forever. The offsets between the old end and the
new start are a gap: their records are lost, or never existed.

The log's state holds them as text, oldest first, `<epoch>:<start>:<previous end>` separated by
spaces. A log that has lost nothing has none: it is in epoch 0 from offset 0 on.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from moldau.broker.metrics.document import count_records

NO_EPOCH = -1
UNDEFINED = (NO_EPOCH, -1)  # Kafka's answer for an epoch that a log does not know


class Epoch(NamedTuple):
    number: int
    start: int  # its first offset
    previous_end: int  # the end of the log when it began: up to `start` nothing exists


class Epochs:
    """The epochs of one log. Immutable, and `EPOCH_ZERO` for nearly every log."""

    __slots__ = ("_starts", "all", "current", "gaps", "start")

    def __init__(self, epochs: tuple[Epoch, ...] = ()) -> None:
        for before, after in zip((Epoch(0, 0, 0), *epochs), epochs, strict=False):
            if not (
                before.number < after.number
                and before.start <= after.start
                and 0 <= after.previous_end <= after.start
            ):
                raise ValueError(f"not a succession of leader epochs: {epochs}")
        self.all = epochs
        self.current, self.start = (epochs[-1].number, epochs[-1].start) if epochs else (0, 0)
        self.gaps = _gaps(epochs)  # (first offset that does not exist, first one after it)
        self._starts = [epoch.start for epoch in epochs]

    @classmethod
    def parse(cls, text: bytes | None) -> Epochs:
        """Parse `text`. Raises ValueError."""
        if not text:
            return EPOCH_ZERO
        epochs = []
        for epoch in text.split():
            number, start, previous_end = map(int, epoch.split(b":"))
            epochs.append(Epoch(number, start, previous_end))
        return cls(tuple(epochs))

    @property
    def text(self) -> bytes:
        return b" ".join(b"%d:%d:%d" % epoch for epoch in self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Epochs) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    def __repr__(self) -> str:
        return f"Epochs({self.text.decode()!r})"

    # --- changing ---

    def followed_by(self, start: int, previous_end: int, *, log_start: int = 0) -> Epochs:
        """Add the next epoch, from `start` on; drop those that ended before `log_start`."""
        following = Epoch(self.current + 1, start, max(previous_end, self.start))
        return Epochs((*self.since(log_start).all, following))

    def since(self, log_start: int) -> Epochs:
        """Drop those that ended before `log_start`: they would accumulate forever."""
        ended = bisect_right(self._starts, log_start) - 1
        return Epochs(self.all[ended:]) if ended > 0 else self

    # --- asking ---

    def skip_gap(self, offset: int) -> int:
        """The offset itself, or the end of the gap it lies in."""
        for first, after in self.gaps:
            if offset < first:
                break
            if offset < after:
                return after
        return offset

    def count(self, first: int, after: int) -> int:
        """How many of the offsets from `first` to before `after` exist."""
        return count_records(self.gaps, first, after)

    def number_at(self, offset: int) -> int:
        """The epoch of a record. An offset in a gap has that of the record which is read there."""
        index = bisect_right(self._starts, self.skip_gap(offset))
        return self.all[index - 1].number if index else 0

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Where an epoch ended (KIP-320): the largest one known up to it, and its end offset.

        Unlike in Kafka, an epoch ends where its records do and not where the next one
        starts: a consumer that read lost records sees that its position is beyond it.
        """
        if epoch == self.current:
            return epoch, log_end
        if epoch < 0 or epoch > self.current:
            return UNDEFINED
        largest = epoch
        for known in self.all:
            if known.number > epoch:
                return largest, known.previous_end
            largest = known.number
        raise AssertionError("below the current epoch")  # pragma: no cover


def _gaps(epochs: tuple[Epoch, ...]) -> tuple[tuple[int, int], ...]:
    gaps: list[tuple[int, int]] = []
    for _, start, previous_end in epochs:
        if start == previous_end:
            continue
        if gaps and previous_end <= gaps[-1][1]:
            gaps[-1] = (min(gaps[-1][0], previous_end), start)  # nothing was appended in between
        else:
            gaps.append((previous_end, start))
    return tuple(gaps)


EPOCH_ZERO = Epochs()
