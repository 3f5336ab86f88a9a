"""What is appended to a log: batches of producers, and markers. Pure: no I/O.

A marker is the control batch that ends a transaction. It carries the number of its transaction, and
is appended unless the log has a marker of that number, or of a later one, of the same producer: so
it may be sent any number of times, through any worker. An administrator's marker
(`kafka-transactions.sh abort`) has no number: it ends whatever the producer has open, and is left
out if nothing is. It must not be of an older epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.callbacks import Completion
from moldau.broker.log.state.log_state import LogState, Producer
from moldau.broker.wire.batch import BatchHeader, read_header
from moldau.broker.wire.control import EndMarker, build_end_marker

ADMINISTRATORS = -1  # as a number
NO_REPLICAS = -1  # acks=1: no replica is waited for


class Participation(msgspec.Struct, gc=False):
    """How a batch takes part in a transaction."""

    transactional_id: str
    adds: bool  # its partition is added to the transaction, else it must have been before
    number: int = 0  # of the transaction, as the coordinator named it; 0: it was not asked yet
    asked_in: int = 0  # the start of the leader epoch in which it was asked


class Append(ABC):
    """One batch to be appended; `done` is called once, with its offset or with the fault.

    `replicas`: with acks=all, how many replicas of the store must have it at least.
    """

    __slots__ = ("base_offset", "batch", "given_up", "header", "replicas", "timeout_ms")

    participation: Participation | None = None  # of a transactional batch

    def __init__(
        self,
        batch: memoryview | bytearray,
        header: BatchHeader,
        replicas: int = NO_REPLICAS,
        timeout_ms: int = 0,
    ) -> None:
        self.batch = batch
        self.header = header
        self.replicas = replicas
        self.timeout_ms = timeout_ms
        self.base_offset = -1
        self.given_up = False  # its client got a timeout: not sent if it is still queued

    @abstractmethod
    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None: ...


class Marker(NamedTuple):
    producer_id: int
    producer_epoch: int
    number: int
    commit: bool


class MarkerAppend(Append):
    """A marker in the queue of a log. Waits for all replicas: a commit that was announced must not
    turn into an abort after a failover."""

    __slots__ = ("_done", "_now_ms", "end", "marker")

    def __init__(self, marker: Marker, now_ms: int, done: Completion) -> None:
        self.marker = marker
        self._now_ms = now_ms
        self._done = done
        self._build(max(marker.number, 0))
        super().__init__(self.batch, read_header(self.batch), replicas=0)

    def _build(self, number: int) -> None:
        producer_id, epoch, _, commit = self.marker
        self.end = EndMarker(commit, number)
        self.batch = build_end_marker(producer_id, epoch, self.end, self._now_ms)

    def is_needed(self, state: LogState, ahead: dict[int, Producer]) -> bool:
        """`ahead`: producers of the entry it would be in, if there is any before it."""
        marker = self.marker
        if marker.number != ADMINISTRATORS:
            return state.awaits(marker.producer_id, marker.number, ahead)
        known = ahead.get(marker.producer_id) or state.producers.get(marker.producer_id)
        return known is not None and known.open_from >= 0

    def refusal(self, state: LogState, ahead: dict[int, Producer]) -> KafkaError | None:
        """An administrator who means an older epoch has seen another transaction."""
        producer_id, epoch, number, _ = self.marker
        known = ahead.get(producer_id) or state.producers.get(producer_id)
        if number != ADMINISTRATORS or known is None or epoch >= known.epoch:
            return None
        text = f"producer {producer_id} has epoch {known.epoch}, not {epoch}"
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)

    def number_it(self, state: LogState, ahead: dict[int, Producer]) -> None:
        """An administrator's marker gets the number of the producer's last ended transaction, so
        that it does not keep out the marker that the coordinator may still send."""
        marker = self.marker
        if marker.number == ADMINISTRATORS:
            known = ahead.get(marker.producer_id) or state.producers.get(marker.producer_id)
            self._build(0 if known is None else known.ended)
            self.header = read_header(self.batch)

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self._done(error)
