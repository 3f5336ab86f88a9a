"""How a transactional id survives a restart, a store that lost its tail, and a change of owner."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Persisted
from moldau.broker.txn import transitions
from moldau.broker.txn.effects import Effect
from moldau.broker.txn.record import TxnRecord, TxnState, is_after
from moldau.broker.txn.rules import TakeProducerId
from moldau.broker.txn.transaction import Transaction
from moldau.broker.txn.transaction_data import TxnConfig, markers_of


def restore(
    record: TxnRecord,
    config: TxnConfig,
    take_producer_id: TakeProducerId,
    now_ms: int,
    *,
    is_stale: bool = False,
    require_abort: bool = False,
) -> tuple[Transaction, list[Effect]]:
    """The transaction as it was stored: the deadline of an open one stays, and the markers of one
    that is ending are asked for again, as it is not known which of them are written.

    `is_stale`: the store may have had later records of it, which are lost.
    `require_abort`: logs may have lost records of an open transaction.
    """
    transaction = Transaction(record.transactional_id, config, take_producer_id, now_ms)
    transaction.revision = record.revision
    transaction.put(record)
    if is_stale:
        transaction.put(transitions.fence_orphan(record, now_ms))
        _store_before_markers(transaction)
        transaction.go_on()
    else:
        if require_abort and record.state is TxnState.ONGOING:
            transaction.put(transitions.require_abort(record))
            transaction.is_store_wanted = True
        transaction.settle()
        transaction.go_on()
    return transaction, transaction.take_effects()


def store_again(transaction: Transaction, stored: TxnRecord | None, now_ms: int) -> list[Effect]:
    """The store lost its tail, and has `stored` of this id.

    Decisions of ours may be lost, and markers with them: partitions would be left with a
    transaction that never ends. So the last one that ended is ended again, and one that only the
    store knows to be open is aborted: its decision is lost, and so is every marker of it.
    """
    transaction.now_ms = now_ms
    transaction.rewriting_lost()
    if stored is not None and _has_all(transaction, stored):
        return []
    record, ended = transaction.record, transaction.last_ended
    if record is None and stored is None:
        return []
    if record is not None and stored is not None and _is_undecided(stored, record, ended):
        transaction.markers_lost(markers_of(stored))
    if record is not None and ended is not None:
        if _is_completed(record, ended):
            transaction.become(ended)
        else:
            transaction.markers_lost(markers_of(ended))
    _store_before_markers(transaction)
    transaction.go_on()
    return transaction.take_effects()


def require_abort(transaction: Transaction, now_ms: int) -> list[Effect]:
    """What is open can only be aborted from now on. A decision in flight has not been answered, no
    marker of it is written, and a later write replaces it: it counts as failed."""
    record = transaction.record
    if record is None or record.state is not TxnState.ONGOING:
        return []
    effects: list[Effect] = []
    if transaction.write is not None:
        failed = Persisted(transaction.revision, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        effects = transaction.handle(failed, now_ms)
    transaction.put(transitions.require_abort(record))
    return effects


def unload(transaction: Transaction, now_ms: int) -> list[Effect]:
    """Give the id up, because another worker owns it or this one stops: waiting requests get
    NOT_COORDINATOR. The stored record stays, and nobody waits for a write in flight."""
    transaction.now_ms = now_ms
    write, transaction.write = transaction.write, None
    for request in write.requests() if write is not None else ():
        transaction.refuse(request, ErrorCode.NOT_COORDINATOR)
    for waiting in transaction.take_waiting():
        transaction.refuse(waiting.event, ErrorCode.NOT_COORDINATOR)
    transaction.cancel_all_timers()
    return transaction.take_effects()


def _has_all(transaction: Transaction, stored: TxnRecord) -> bool:
    """True if the store has our last write. Markers precede later records, so they are there
    too, unless the last write was the decision itself."""
    record = transaction.record
    return (
        stored.revision == transaction.revision
        and record is not None
        and transaction.write is None
        and transaction.completed_ms is None
        and not transaction.in_doubt
        and not transaction.is_overdue
        and not transaction.lost_markers
        and not record.must_abort
        and not record.state.is_ending
    )


def _is_undecided(stored: TxnRecord, record: TxnRecord, ended: TxnRecord | None) -> bool:
    """Only the store knows the partitions of this transaction, which is over for us. A later number
    than ours is that of a write that failed: no client has got it, and it will be used again."""
    is_known = ended is not None and ended.number == stored.number
    return bool(stored.partitions) and is_after(record.number, stored.number) and not is_known


def _is_completed(record: TxnRecord, ended: TxnRecord) -> bool:
    """Nothing has happened since that transaction was completed."""
    is_complete = record.state.is_committed or record.state.is_aborted
    return is_complete and not record.state.is_ending and record.number == ended.number


def _store_before_markers(transaction: Transaction) -> None:
    """Store the record as it is now in memory. If it is a decision, then its markers are written:
    a decision always comes before its markers."""
    transaction.is_store_wanted = True
    record = transaction.record
    if record is None or not record.state.is_ending:
        return
    if record.partitions:
        transaction.markers_lost(markers_of(record))
    else:
        transaction.complete(record)
