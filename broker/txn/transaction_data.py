"""What is known of a transactional id: limits, record, who waits, its one write, its markers.

There is one write in flight. The record in memory is replaced when it has succeeded, so a failed
write needs no undoing. All timers are lazy: a timer that is armed early enough is left alone, and
checks when it fires whether anything is due. A producer that ends a thousand transactions a second
moves no timer.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from moldau.broker import machine
from moldau.broker.errors import ErrorCode
from moldau.broker.txn.effects import Answer, Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Request
from moldau.broker.txn.record import TxnPartition, TxnRecord, TxnState
from moldau.broker.txn.rules import TakeProducerId, refuse


class TxnConfig(Struct, frozen=True):
    """The broker's transaction settings, under Kafka's names where Kafka has one."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`"""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """`transactional.id.expiration.ms`"""
    wait_for_markers_ms: int = 100
    """How long a request waits for the previous transaction to end. Kafka answers
    CONCURRENT_TRANSACTIONS at once, which costs clients 20 ms and more per transaction."""
    complete_after_ms: int = 1_000
    """Complete* is stored with the next change, or after this long without one."""
    persist_retry_ms: int = 1_000
    """Delay before a failed write is tried again."""


class TimerKind(StrEnum):
    TIMEOUT = "timeout"
    """A transaction has been open for its timeout: it is aborted."""
    MARKERS = "markers"
    """A request has waited long enough for the markers of the previous transaction."""
    IDLE = "idle"
    """A transaction was completed a while ago and nothing followed: store that now."""
    PERSIST_RETRY = "persist retry"
    """Repeats a failed write."""


class Waiting(Struct):
    """A request that waits for the write in flight, or for the markers of a transaction."""

    event: Request
    until_ms: int | None = None
    """When it gets CONCURRENT_TRANSACTIONS; None until it has met Prepare*."""


class Write(Struct):
    """A write that is being prepared or is in flight."""

    record: TxnRecord | None
    """None to remove the id."""
    changes: bool = True
    """False if the id is stored unchanged, because the store has something older or in doubt."""
    takes_more: bool = False
    """True if it adds partitions: other waiting requests may add theirs to the same write."""
    answers: list[tuple[Request, Answer]] = field(default_factory=list)
    """The answers to send once it has succeeded."""
    looked_at_again: list[Waiting] = field(default_factory=list)
    """The InitProducerId that aborts an open transaction first, and is decided again afterwards."""
    markers: list[WriteMarkers] = field(default_factory=list)
    """The markers that the store may have lost; written once this write has succeeded."""

    def requests(self) -> list[Request]:
        answered = [event for event, _ in self.answers]
        return answered + [waiting.event for waiting in self.looked_at_again]


class TransactionData(machine.Machine[Effect, Write]):
    def __init__(
        self,
        transactional_id: str,
        config: TxnConfig,
        take_producer_id: TakeProducerId,
        now_ms: int,
    ) -> None:
        super().__init__(transactional_id, now_ms)
        self.transactional_id = transactional_id
        self.config = config
        self.take_producer_id = take_producer_id
        self.record: TxnRecord | None = None
        """The stored record, except that Complete* may not be stored yet. None if the id is
        unknown."""
        self.partitions: frozenset[TxnPartition] = frozenset()
        """The partitions of the record."""
        self.is_overdue = False
        """The open transaction has exceeded its timeout, and its abort is not stored yet."""
        self.completed_ms: int | None = None
        """When the transaction was completed, while that is not stored."""
        self.last_ended: TxnRecord | None = None
        """The last Prepare* that was completed here: the store may lose its markers."""
        self.in_doubt = False
        """The last write failed: the store may or may not have the record."""
        self.waiting: list[Waiting] = []
        """Requests in the order in which they came."""
        self.is_store_wanted = False
        """The record is to be stored as it is, with the next write or by itself."""
        self.lost_markers: list[WriteMarkers] = []
        """Markers that the store may have lost. They are written again once the record is
        stored."""
        self.rewriting: list[WriteMarkers] = []
        """Markers that are being written again, one transaction after the other, the first in
        progress. A later marker before an earlier one would end the earlier transaction."""

    # --- effects ---

    def refuse(self, event: Request, error: ErrorCode) -> None:
        self.reply(event.call, refuse(event, error))

    def write_markers(self, markers: WriteMarkers) -> None:
        self.effects.append(markers)

    # --- markers that are written again ---

    @property
    def is_rewriting(self) -> bool:
        """True while markers of earlier transactions still have to be written again."""
        in_flight = self.write.markers if self.write is not None else ()
        return bool(self.lost_markers or in_flight or self.rewriting)

    @property
    def is_only_ending(self) -> bool:
        """True if only the markers of the transaction that is ending are written again."""
        record = self.record
        return (
            record is not None
            and record.state.is_ending
            and all(markers.number == record.number for markers in self.rewriting)
        )

    def markers_lost(self, markers: WriteMarkers) -> None:
        if markers not in self.lost_markers:
            self.lost_markers.append(markers)

    def rewriting_lost(self) -> None:
        """Note that markers that are being written again may be lost once more."""
        self.lost_markers = self.rewriting + self.lost_markers
        self.rewriting = []

    def rewrite(self, markers: list[WriteMarkers]) -> None:
        is_at_it = bool(self.rewriting)
        self.rewriting += markers
        if not is_at_it and self.rewriting:
            self.write_markers(self.rewriting[0])

    def rewritten(self, number: int) -> None:
        if self.rewriting and self.rewriting[0].number == number:
            self.rewriting.pop(0)
            if self.rewriting:
                self.write_markers(self.rewriting[0])

    # --- the record ---

    def put(self, record: TxnRecord | None) -> None:
        self.record = record
        self.partitions = frozenset() if record is None else frozenset(record.partitions)

    def become(self, record: TxnRecord | None) -> None:
        before = self.record
        self.put(record)
        state = None if record is None else record.state
        previous = None if before is None else before.state
        if state is not previous:
            known = record or before
            number = 0 if known is None else known.number
            self.effects.append(StateChanged(self.transactional_id, previous, state, number))

    # --- writes ---

    def begin(self, write: Write) -> None:
        revision = self.write_begins(write)
        if write.record is not None:
            write.record = replace(write.record, revision=revision)
        write.markers, self.lost_markers = self.lost_markers, []
        self.is_store_wanted = False
        self.effects.append(Persist(self.transactional_id, revision, write.record))

    def take_waiting(self) -> list[Waiting]:
        waiting, self.waiting = self.waiting, []
        return waiting

    @property
    def is_gone(self) -> bool:
        """True if the id is unknown and nothing is on its way to the store: drop it."""
        return self.record is None and self.write is None and not self.in_doubt


def markers_of(record: TxnRecord) -> WriteMarkers:
    """Return the markers that a record in Prepare* needs. An open transaction is aborted."""
    return WriteMarkers(
        record.transactional_id,
        record.producer_id,
        record.producer_epoch,
        record.number,
        record.state is TxnState.PREPARE_COMMIT,
        record.partitions,
    )
