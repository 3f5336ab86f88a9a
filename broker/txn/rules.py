"""The effect of each request in each state: the table of README.md as pure functions.

A rule gets the stored record and returns one of three outcomes: an answer; a record to store, and
the answer for then; or that the previous transaction has to end first.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TypeAlias

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.txn import transitions
from moldau.broker.txn.effects import AddAnswer, Answer, EndAnswer, InitAnswer
from moldau.broker.txn.events import Add, End, Init, Request
from moldau.broker.txn.record import LAST_EPOCH, NO_PRODUCER_ID, TxnPartition, TxnRecord, TxnState
from moldau.broker.txn.transitions import FENCE, NONE, Identity, current, previous

TakeProducerId: TypeAlias = Callable[[], int]
"""Returns a producer id that was never used, or `NO_PRODUCER_ID` if none is available."""

V2_END = 5
"""From this version on, EndTxn comes from a client of transaction version 2."""
FIRST_END_WITH_ABORTABLE = 4
V2_ADD = 5
"""AddPartitionsToTxn for a batch or offsets that enlist themselves."""


class Answered(Struct, frozen=True):
    """The request is answered, and nothing changes."""

    answer: Answer


class Stored(Struct, frozen=True):
    """The record is stored, then the answer is sent. Without an answer the request is decided
    again."""

    record: TxnRecord
    answer: Answer | None


class Waits(Struct, frozen=True):
    """The request waits for the markers of the previous transaction."""


Outcome: TypeAlias = Answered | Stored | Waits
WAITS = Waits()


def init(
    record: TxnRecord | None,
    transactional_id: str,
    event: Init,
    max_timeout_ms: int,
    take_producer_id: TakeProducerId,
    now_ms: int,
) -> Outcome:
    """InitProducerId of a new process, or of a producer that continues after an error (KIP-360)."""
    given = Identity(event.producer_id, event.producer_epoch)
    is_new = given == NONE
    if not is_new and (given.producer_id < 0 or given.producer_epoch < 0):
        return refused(event, ErrorCode.INVALID_REQUEST)
    if not 0 < event.timeout_ms <= max_timeout_ms:
        return refused(event, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    if record is None:
        producer_id = take_producer_id()
        if producer_id == NO_PRODUCER_ID:
            return refused(event, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        first = transitions.created(transactional_id, producer_id, event.timeout_ms, now_ms)
        return Stored(first, InitAnswer(ErrorCode.NONE, *current(first)))
    after = _after(record, now_ms)
    is_current = given == current(after)
    is_repeated = _was_before(given, after)
    if not (is_new or is_current or is_repeated):
        return refused(event, _fenced(event.version, 4))
    if record.state.is_ending:
        return WAITS
    if record.state is TxnState.ONGOING:
        return Stored(transitions.fenced(record, given, now_ms), None)
    if is_repeated and record.producer_epoch <= LAST_EPOCH:
        new = current(record)
    elif record.producer_epoch < LAST_EPOCH:
        new = Identity(record.producer_id, record.producer_epoch + 1)
    else:
        new = Identity(take_producer_id(), 0)
        if new.producer_id == NO_PRODUCER_ID:
            return refused(event, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    changed = transitions.initialised(record, new, given, event.timeout_ms, now_ms)
    return Stored(changed, InitAnswer(ErrorCode.NONE, *new))


def while_rewriting(event: Request) -> Outcome:
    """Decide a request while markers that the store lost are written again. Until they are there,
    nothing can be added to a later transaction, since the marker could end it, and nothing can
    end."""
    if isinstance(event, Add) and (event.verify_only or not event.waits):
        return refused(event, ErrorCode.CONCURRENT_TRANSACTIONS)
    return WAITS


def add(
    record: TxnRecord | None, partitions: Set[TxnPartition], event: Add, now_ms: int
) -> Outcome:
    """AddPartitionsToTxn, AddOffsetsToTxn, and batches that enlist themselves. `partitions` are the
    record's."""
    if record is None:
        return refused(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    after = _after(record, now_ms)
    if event.producer_id != after.producer_id:
        return refused(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if event.producer_epoch != after.producer_epoch:
        return refused(event, _fenced(event.version, 2))
    if record.state.is_ending:
        if event.verify_only or not event.waits:
            return refused(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        return WAITS
    new = tuple(
        dict.fromkeys(partition for partition in event.partitions if partition not in partitions)
    )
    if event.verify_only:
        return Answered(AddAnswer(ErrorCode.NONE, record.number, frozenset(new)))
    if not new:
        return Answered(AddAnswer(ErrorCode.NONE, record.number))
    changed = transitions.added(record, new, now_ms, 2 if event.version >= V2_ADD else 0)
    return Stored(changed, AddAnswer(ErrorCode.NONE, changed.number))


def end(
    record: TxnRecord | None, event: End, take_producer_id: TakeProducerId, now_ms: int
) -> Outcome:
    """EndTxn. A repeated request gets the answer that may have been lost."""
    if record is None:
        return refused(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    after = _after(record, now_ms)
    given = Identity(event.producer_id, event.producer_epoch)
    raises_epoch = event.version >= V2_END
    if given != current(after):
        if raises_epoch and _was_before(given, after):
            return _end_again(record, after, event, take_producer_id, now_ms)
        if given.producer_id != after.producer_id:
            return refused(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return refused(event, _fenced(event.version, 2))
    if record.state is TxnState.ONGOING:
        if event.commit and record.must_abort:
            return refused(event, _abortable(event.version))
        if raises_epoch:
            return _end_with_next_epoch(record, event, take_producer_id, now_ms)
        changed = transitions.ended(record, event.commit, now_ms)
        return Stored(changed, EndAnswer(ErrorCode.NONE, *given))
    if not raises_epoch:
        return _end_decided(record, after, event)
    if event.commit:
        return refused(event, ErrorCode.INVALID_TXN_STATE)
    if record.state.is_ending:
        return WAITS
    return _end_with_next_epoch(record, event, take_producer_id, now_ms)


def refuse(event: Request, error: ErrorCode) -> Answer:
    """Answer a request that fails."""
    match event:
        case Init():
            return InitAnswer(error)
        case Add():
            return AddAnswer(error)
        case End():
            return EndAnswer(error)


def refused(event: Request, error: ErrorCode) -> Answered:
    return Answered(refuse(event, error))


def _after(record: TxnRecord, now_ms: int) -> TxnRecord:
    """Return the record as it will be once its transaction has ended. Producers use that identity
    as soon as EndTxn is answered, before the markers are written."""
    return transitions.completed(record, now_ms) if record.state.is_ending else record


def _was_before(given: Identity, record: TxnRecord) -> bool:
    """True if the producer repeats a request with its old epoch, because it missed the answer.
    While a transaction is open this cannot be: it was opened with the new epoch."""
    return given != NONE and given == previous(record)


def _fenced(version: int, since: int) -> ErrorCode:
    """Return INVALID_PRODUCER_EPOCH for old clients, which do not know PRODUCER_FENCED."""
    return ErrorCode.PRODUCER_FENCED if version >= since else ErrorCode.INVALID_PRODUCER_EPOCH


def _abortable(version: int) -> ErrorCode:
    """Return the error that makes a producer abort and continue. Clients that do not know
    TRANSACTION_ABORTABLE (KIP-890) treat the other error as a lost producer id: they abort, and
    raise their epoch (KIP-360)."""
    if version >= FIRST_END_WITH_ABORTABLE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _end_decided(record: TxnRecord, after: TxnRecord, event: End) -> Outcome:
    """Decide an EndTxn for a transaction that has ended: the same decision is answered as before,
    at once, since it is stored. In Empty there is none."""
    state = record.state
    if state.is_committed if event.commit else state.is_aborted:
        return Answered(EndAnswer(ErrorCode.NONE, *current(after)))
    return refused(event, ErrorCode.INVALID_TXN_STATE)


def _end_again(
    record: TxnRecord,
    after: TxnRecord,
    event: End,
    take_producer_id: TakeProducerId,
    now_ms: int,
) -> Outcome:
    """Decide an EndTxn with the previous epoch: its answer was lost, or the transaction exceeded
    its timeout. In Empty, InitProducerId raised the epoch."""
    if record.state is TxnState.EMPTY:
        return refused(event, ErrorCode.PRODUCER_FENCED)
    if event.commit or after.producer_epoch != FENCE:
        return _end_decided(record, after, event)
    # A timeout used up the last epoch, and there is none left to give to the producer.
    if record.state.is_ending:
        return WAITS
    return _end_with_next_epoch(record, event, take_producer_id, now_ms)


def _end_with_next_epoch(
    record: TxnRecord, event: End, take_producer_id: TakeProducerId, now_ms: int
) -> Outcome:
    next_producer_id = NO_PRODUCER_ID
    if record.producer_epoch >= LAST_EPOCH:
        next_producer_id = take_producer_id()
        if next_producer_id == NO_PRODUCER_ID:
            return refused(event, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    changed = transitions.ended_with_next_epoch(record, event.commit, now_ms, next_producer_id)
    goes_on_with = current(transitions.completed(changed, now_ms))
    return Stored(changed, EndAnswer(ErrorCode.NONE, *goes_on_with))
