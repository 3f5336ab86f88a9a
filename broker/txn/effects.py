"""What a transactional id wants done beside what every machine does (`machine/effects.py`), and its
answers. `WriteMarkers`, as a `Reply`, is emitted only once its decision is stored.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import effects
from moldau.broker.machine.effects import ArmTimer, CancelTimer, Failed, Reply
from moldau.broker.txn.record import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Place,
    TxnRecord,
    TxnState,
)
from moldau.broker.txn.serial import NO_NUMBER


class InitAnswer(Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddAnswer(Struct, frozen=True):
    """Without an error and nothing missing: the places are durably in transaction `number`."""

    error: ErrorCode
    number: int = NO_NUMBER
    missing: frozenset[Place] = frozenset()
    """verify_only: the places that are not in the transaction."""


class EndAnswer(Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    """What the producer goes on with; sent from v5 on."""
    producer_epoch: int = NO_PRODUCER_EPOCH


Answer: TypeAlias = InitAnswer | AddAnswer | EndAnswer


class Persist(effects.Persist, frozen=True):
    """Store the record. None: remove it and its entry in the slot's index."""

    record: TxnRecord | None


class WriteMarkers(Struct, frozen=True):
    """Write this transaction's marker to every place, then send `MarkersWritten(number)`.

    Retried for ever: the decision is stored. It may be asked for again after a restart, and is the
    same then. There is at least one place.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    commit: bool
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        return self.transactional_id


class StateChanged(Struct, frozen=True):
    """For the log; nothing needs to be done."""

    transactional_id: str
    previous: TxnState | None
    """None: the id is new."""
    state: TxnState | None
    """None: the id was removed."""
    number: int


Effect: TypeAlias = (
    Reply[Answer] | Persist | WriteMarkers | ArmTimer | CancelTimer | StateChanged | Failed
)
