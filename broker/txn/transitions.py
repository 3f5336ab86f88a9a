"""The changes of a transactional id's record, as pure functions from record to record.

`rules.py` decides whether a change is allowed and what is answered. The revision is set when the
record is written.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from moldau.broker.txn.record import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_STARTED,
    TxnPartition,
    TxnRecord,
    TxnState,
    next_number,
)

FENCE = LAST_EPOCH + 1
"""An epoch that no producer ever gets: an id with it belongs to no producer until
InitProducerId."""


class Identity(NamedTuple):
    """The producer id and epoch with which a producer identifies itself."""

    producer_id: int
    producer_epoch: int


NONE = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def current(record: TxnRecord) -> Identity:
    return Identity(record.producer_id, record.producer_epoch)


def previous(record: TxnRecord) -> Identity:
    """Return the identity that the current producer had before, or `NONE` if it may not use it."""
    return Identity(record.previous_producer_id, record.last_producer_epoch)


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TxnRecord:
    return TxnRecord(
        transactional_id=transactional_id,
        revision=0,
        state=TxnState.EMPTY,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
    )


def initialised(
    record: TxnRecord, new: Identity, before: Identity, timeout_ms: int, now_ms: int
) -> TxnRecord:
    """InitProducerId gave out `new`; the same producer may come back with `before`."""
    return replace(
        record,
        state=TxnState.EMPTY,
        producer_id=new.producer_id,
        producer_epoch=new.producer_epoch,
        previous_producer_id=before.producer_id,
        last_producer_epoch=before.producer_epoch,
        timeout_ms=timeout_ms,
        started_ms=NOT_STARTED,
        updated_ms=now_ms,
        client_version=0,
        partitions=(),
    )


def added(
    record: TxnRecord, partitions: tuple[TxnPartition, ...], now_ms: int, client_version: int
) -> TxnRecord:
    """Add new partitions. The first ones of a transaction open it."""
    if record.state is TxnState.ONGOING:
        return replace(
            record,
            updated_ms=now_ms,
            client_version=max(record.client_version, client_version),
            partitions=record.partitions + partitions,
        )
    return replace(
        record,
        state=TxnState.ONGOING,
        # The producer has received the answer that told its epoch, or it could not send this.
        previous_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        number=next_number(record.number),
        started_ms=now_ms,
        updated_ms=now_ms,
        client_version=client_version,
        partitions=partitions,
    )


def ended(record: TxnRecord, commit: bool, now_ms: int) -> TxnRecord:
    """EndTxn below v5: the producer keeps its epoch."""
    return replace(record, state=_prepared(commit), updated_ms=now_ms, client_version=0)


def ended_with_next_epoch(
    record: TxnRecord, commit: bool, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
) -> TxnRecord:
    """EndTxn v5: the producer gets the next epoch, so that nothing it sent before can get into its
    next transaction (KIP-890). It may abort no transaction at all, if the producer does not know
    whether one was opened.

    `next_producer_id` takes over once the markers are written, when the epochs are exhausted.
    """
    is_open = record.state is TxnState.ONGOING
    return replace(
        record,
        state=_prepared(commit),
        producer_epoch=record.producer_epoch + 1 if next_producer_id == NO_PRODUCER_ID else FENCE,
        previous_producer_id=record.producer_id,
        last_producer_epoch=min(record.producer_epoch, LAST_EPOCH),
        next_producer_id=next_producer_id,
        # A number has one decision, even if there is nothing to decide.
        number=record.number if is_open else next_number(record.number),
        started_ms=record.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        client_version=2,
    )


def fenced(record: TxnRecord, before: Identity, now_ms: int) -> TxnRecord:
    """Abort the open transaction on behalf of InitProducerId or a timeout. The marker carries the
    next epoch, which fences batches that are still to arrive."""
    return replace(
        record,
        state=TxnState.PREPARE_ABORT,
        producer_epoch=min(record.producer_epoch + 1, FENCE),
        previous_producer_id=before.producer_id,
        last_producer_epoch=before.producer_epoch,
        updated_ms=now_ms,
    )


def require_abort(record: TxnRecord) -> TxnRecord:
    """The store may have lost some of the open transaction: its producer has to abort it."""
    return replace(record, must_abort=True)


def completed(record: TxnRecord, now_ms: int) -> TxnRecord:
    """Every partition has its marker."""
    rotates = record.next_producer_id != NO_PRODUCER_ID
    return replace(
        record,
        state=TxnState.COMPLETE_COMMIT if record.state.is_committed else TxnState.COMPLETE_ABORT,
        producer_id=record.next_producer_id if rotates else record.producer_id,
        producer_epoch=0 if rotates else record.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
        partitions=(),
        must_abort=False,
    )


def fence_orphan(record: TxnRecord, now_ms: int) -> TxnRecord:
    """The store lost what followed this record: epochs above may have been given out, and must not
    be given to another producer. No producer owns the id until InitProducerId gives it a new
    producer id. An open transaction is aborted; one that is ending ends as it was decided.
    """
    if record.state is TxnState.ONGOING:
        record = fenced(record, NONE, now_ms)
    return replace(
        record,
        producer_epoch=FENCE,
        previous_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
    )


def _prepared(commit: bool) -> TxnState:
    return TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
