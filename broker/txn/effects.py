"""The effects of a transactional id, and its answers. The coordinator runs effects in their order.

A `Reply` that promises something durable, and `WriteMarkers`, come only after the `Persisted` event
for it, so the coordinator never has to hold one back.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.txn.record import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TxnPartition,
    TxnRecord,
    TxnState,
)
from moldau.broker.txn.timers import TimerKey
from moldau.broker.txn.transaction_numbers import NO_NUMBER


class InitAnswer(Struct, frozen=True):
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddAnswer(Struct, frozen=True):
    """Without an error and missing partitions, all are durably part of transaction `number`."""

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


class Reply(Struct, frozen=True):
    """Answer the request with this token; exactly one for each request."""

    call: object
    answer: Answer


class Persist(Struct, frozen=True):
    """Store the record, then send `Persisted(token, …)`, whatever the outcome.

    Without a `record`, remove the id and its entry in the slot's index. An id has at most one write
    in flight. Tokens grow with every write, across restarts too (`TxnRecord.revision`), so that the
    store can refuse a write that arrives late. An outcome that arrives after the id was given up
    must not be sent: the id may have been loaded again, with the same revisions.
    """

    transactional_id: str
    token: int
    record: TxnRecord | None


class WriteMarkers(Struct, frozen=True):
    """Write this transaction's marker to every partition, then send `MarkersWritten(number)`.

    The coordinator retries for ever, since the decision is stored. After a restart the same markers
    may be requested again. There is at least one partition.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    commit: bool
    partitions: tuple[TxnPartition, ...]


class ArmTimer(Struct, frozen=True):
    """Send `TimerFired(key)` at that time. Arming an armed key moves it."""

    key: TimerKey
    at_ms: int


class CancelTimer(Struct, frozen=True):
    """Cancel a timer. This is only sent for a key that is armed."""

    key: TimerKey


class StateChanged(Struct, frozen=True):
    """Reported for the log; nothing needs to be done."""

    transactional_id: str
    previous: TxnState | None
    """None if the id is new."""
    state: TxnState | None
    """None if the id was removed."""
    number: int


class Failed(Struct, frozen=True):
    """An exception left the id half changed: it must be discarded and loaded again."""

    transactional_id: str
    defect: Exception


Effect: TypeAlias = Reply | Persist | WriteMarkers | ArmTimer | CancelTimer | StateChanged | Failed
