"""The effects of a transactional id, beside those of every machine (`broker/machine.py`), and its
answers. `WriteMarkers`, as a `Reply`, is emitted only once its decision is stored.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from moldau.broker import machine
from moldau.broker.errors import ErrorCode
from moldau.broker.machine import ArmTimer, CancelTimer, Failed, Reply
from moldau.broker.txn.record import (
    NO_NUMBER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TxnPartition,
    TxnRecord,
    TxnState,
)


class InitAnswer(Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddAnswer(Struct, frozen=True):
    """Unless there is an error or a missing partition, all are durably part of `number`."""

    error: ErrorCode
    number: int = NO_NUMBER
    missing: frozenset[TxnPartition] = frozenset()
    """The partitions that are not part of the transaction, for verify_only."""


class EndAnswer(Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    """The identity with which the producer continues; sent from v5 on."""
    producer_epoch: int = NO_PRODUCER_EPOCH


Answer: TypeAlias = InitAnswer | AddAnswer | EndAnswer


class Persist(machine.Persist, frozen=True):
    """Store the record. None: remove it and its entry in the slot's index."""

    record: TxnRecord | None


class WriteMarkers(Struct, frozen=True):
    """Write this transaction's marker to every partition, then send `MarkersWritten(number)`.

    The coordinator retries forever, since the decision is stored. After a restart the same markers
    may be requested again. There is at least one partition.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    commit: bool
    partitions: tuple[TxnPartition, ...]

    @property
    def name(self) -> str:
        return self.transactional_id


class StateChanged(Struct, frozen=True):
    """Reported for the log; nothing needs to be done."""

    transactional_id: str
    previous: TxnState | None
    """None if the id is new."""
    state: TxnState | None
    """None if the id was removed."""
    number: int


Effect: TypeAlias = (
    Reply[Answer] | Persist | WriteMarkers | ArmTimer | CancelTimer | StateChanged | Failed
)
