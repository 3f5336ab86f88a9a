"""What this worker knows of a log: its state, where it lies, and how much of it readers see."""

from __future__ import annotations

from moldau.broker.log.reading.tail import Tail
from moldau.broker.log.state.log_state import LogState
from moldau.broker.store import keys
from moldau.broker.store.cleaned import NOTHING_CLEANED
from moldau.broker.store_loss.epochs import EPOCH_ZERO


class LogView:
    """One log. The writer keeps `state` current; a reader adds how the log is read."""

    def __init__(self, topic: str, partition: int, key: bytes, tail: Tail) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.tail = tail
        self.state = LogState()
        self.start = 0  # log start offset
        self.start_bytes = 0  # bytes ever appended that are gone: before it, or by compaction
        self.clean = NOTHING_CLEANED
        # The end and size that readers see: as far as every replica of the store has the log. None,
        # without replicas: all of it.
        self.shown: tuple[int, int] | None = None
        self.epochs = EPOCH_ZERO

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def end(self) -> int:
        """The high watermark: the end of what may be read."""
        return self.state.end if self.shown is None else self.shown[0]

    @property
    def bytes_shown(self) -> int:
        """The bytes below the high watermark, of everything ever appended."""
        return self.state.size if self.shown is None else self.shown[1]

    @property
    def stable_end(self) -> int:
        """The last stable offset: read_committed consumers read up to there."""
        transactions = self.state.transactions
        if not transactions.open:
            return self.end
        return max(min(transactions.stable_end(self.state.end), self.end), self.start)

    @property
    def bytes_stable(self) -> int:
        """The bytes below the last stable offset, of everything ever appended."""
        transactions = self.state.transactions
        if not transactions.open:
            return self.bytes_shown
        return min(transactions.stable_size(self.state.size), self.bytes_shown)

    def hold_readers(self) -> None:
        """What is appended from now on is shown once replicas have it."""
        if self.shown is None:
            self.shown = (self.state.end, self.state.size)

    def show_readers(self, end: int, size: int) -> None:
        if self.shown is not None and end > self.shown[0]:
            self.shown = (end, size)

    def release_readers(self) -> None:
        """There are no replicas to wait for."""
        self.shown = None

    @property
    def size(self) -> int:
        """Bytes from the log start on."""
        return max(self.state.size - self.start_bytes, 0)

    @property
    def clean_key(self) -> bytes:
        return keys.clean(self.key, self.clean.generation)
