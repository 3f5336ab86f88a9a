"""What a request does in each state: the table of README.md as pure functions.

A rule gets the record as it is stored and returns what follows: an answer, a record to store and
the answer for then, or that the transaction before has to end first.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TypeAlias

from msgspec import Struct

from moldau.broker.errors import ErrorCode
from moldau.broker.txn import transitions
from moldau.broker.txn.effects import AddAnswer, Answer, EndAnswer, InitAnswer
from moldau.broker.txn.events import Add, End, Init, Request
from moldau.broker.txn.record import LAST_EPOCH, NO_PRODUCER_ID, Place, TxnRecord, TxnState
from moldau.broker.txn.transitions import FENCE, NONE, Identity, current, previous

TakeProducerId: TypeAlias = Callable[[], int]
"""A producer id that was never used; `NO_PRODUCER_ID` if there is none at hand."""

V2_END = 5
"""EndTxn from this version on is that of a client of transaction version 2."""
FIRST_END_WITH_ABORTABLE = 4
V2_ADD = 5
"""AddPartitionsToTxn of a batch or of offsets that join by themselves."""


class Answered(Struct, frozen=True):
    """Nothing changes."""

    answer: Answer


class Stored(Struct, frozen=True):
    """Once this record is stored: the answer. None: the request is looked at again then."""

    record: TxnRecord
    answer: Answer | None


class Waits(Struct, frozen=True):
    """The markers of the transaction before are still being written."""


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
    """InitProducerId: of a new process, or of a producer that goes on (KIP-360)."""
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
    """Markers of an earlier transaction, which the store has lost, are written again. Until they
    are there, nothing joins a later one, or the marker could end it; and nothing ends."""
    if isinstance(event, Add) and (event.verify_only or not event.waits):
        return refused(event, ErrorCode.CONCURRENT_TRANSACTIONS)
    return WAITS


def add(record: TxnRecord | None, places: Set[Place], event: Add, now_ms: int) -> Outcome:
    """AddPartitionsToTxn, AddOffsetsToTxn, and batches that join. `places`: those of the record."""
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
    new = tuple(dict.fromkeys(place for place in event.places if place not in places))
    if event.verify_only:
        return Answered(AddAnswer(ErrorCode.NONE, record.number, frozenset(new)))
    if not new:
        return Answered(AddAnswer(ErrorCode.NONE, record.number))
    changed = transitions.added(record, new, now_ms, 2 if event.version >= V2_ADD else 0)
    return Stored(changed, AddAnswer(ErrorCode.NONE, changed.number))


def end(
    record: TxnRecord | None, event: End, take_producer_id: TakeProducerId, now_ms: int
) -> Outcome:
    """EndTxn. A request that comes again gets the answer that may have been lost."""
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
    """The answer to a request that fails."""
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
    """The record once its transaction has ended: producers go on with that identity already when
    EndTxn is answered, before the markers are written."""
    return transitions.completed(record, now_ms) if record.state.is_ending else record


def _was_before(given: Identity, record: TxnRecord) -> bool:
    """The producer has not got its last answer, and repeats what it asked with its old epoch. While
    a transaction is open there is none: it was opened with the new epoch."""
    return given != NONE and given == previous(record)


def _fenced(version: int, since: int) -> ErrorCode:
    """Clients of older versions do not know PRODUCER_FENCED."""
    return ErrorCode.PRODUCER_FENCED if version >= since else ErrorCode.INVALID_PRODUCER_EPOCH


def _abortable(version: int) -> ErrorCode:
    """What makes a producer abort, and go on. Clients that do not know TRANSACTION_ABORTABLE
    (KIP-890) take the other for a lost producer id: they abort, and raise their epoch (KIP-360)."""
    if version >= FIRST_END_WITH_ABORTABLE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _end_decided(record: TxnRecord, after: TxnRecord, event: End) -> Outcome:
    """The transaction has ended: the same decision is answered as the first time, at once, since it
    is stored. There is none in Empty."""
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
    """With the epoch before: the answer was lost, or the transaction was over its timeout. In Empty
    it is InitProducerId that raised the epoch."""
    if record.state is TxnState.EMPTY:
        return refused(event, ErrorCode.PRODUCER_FENCED)
    if event.commit or after.producer_epoch != FENCE:
        return _end_decided(record, after, event)
    # A timeout used the last epoch up, and nothing is left to give to the producer.
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
