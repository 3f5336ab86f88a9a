"""What is known of a transactional id: its record, who waits, its one write, its markers."""

from __future__ import annotations

from msgspec.structs import replace

from moldau.broker import machine
from moldau.broker.errors import ErrorCode
from moldau.broker.txn.config import TxnConfig
from moldau.broker.txn.effects import Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Request
from moldau.broker.txn.record import TxnPartition, TxnRecord, TxnState
from moldau.broker.txn.rules import TakeProducerId, refuse
from moldau.broker.txn.writes import Waiting, Write


class Machine(machine.Machine[Effect, Write]):
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
