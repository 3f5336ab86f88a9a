"""`Transaction` is one transactional id and its transactions: events in, effects out.

`rules.py` decides requests in the order of their arrival, against the stored record. While a write
is in flight, new requests wait for it. `recovery.py` handles restarts and a store that lost its
tail.
"""

from __future__ import annotations

from collections.abc import Set

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Persisted, TimerFired
from moldau.broker.txn import rules, transitions
from moldau.broker.txn.effects import AddAnswer, Effect
from moldau.broker.txn.events import Add, End, Event, Init, MarkersWritten, Request
from moldau.broker.txn.record import TxnPartition, TxnRecord, TxnState
from moldau.broker.txn.rules import Answered, Outcome, Stored
from moldau.broker.txn.transaction_data import (
    TimerKind,
    TransactionData,
    Waiting,
    Write,
    markers_of,
)
from moldau.broker.txn.transitions import Identity, current


class Transaction(TransactionData):
    """A transactional id. README.md lists its behaviour in each state.

    `now_ms` is in epoch milliseconds and must never go back: the coordinator reads the wall clock
    once, at its start, and adds the monotonic clock.
    """

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        match event:
            case Init() | Add() | End():
                self._requested(event)
            case Persisted():
                self._persisted(event)
            case MarkersWritten():
                self._markers_written(event)
            case TimerFired():
                self._timer_fired(event)
        return self.take_effects()

    def expire(self, now_ms: int) -> list[Effect]:
        """Remove the id if it has been unused for too long."""
        self.now_ms = now_ms
        record = self.record
        if record is None or self.write is not None:
            return []
        if record.state is TxnState.ONGOING or record.state.is_ending:
            return []
        if now_ms - record.updated_ms >= self.config.id_expiration_ms:
            self.begin(Write(None))
        return self.take_effects()

    # --- requests ---

    def _requested(self, event: Request) -> None:
        if self.write is not None and isinstance(event, Add) and self._is_in(event):
            # These partitions are stored already, whatever is being written.
            assert self.record is not None
            self.reply(event.call, AddAnswer(ErrorCode.NONE, self.record.number))
            return
        self.waiting.append(Waiting(event))
        self.go_on()

    def _is_in(self, event: Add) -> bool:
        record = self.record
        return (
            record is not None
            and record.state is TxnState.ONGOING
            and current(record) == Identity(event.producer_id, event.producer_epoch)
            and self.partitions.issuperset(event.partitions)
            and not self.is_rewriting
        )

    def go_on(self) -> None:
        """Decide the waiting requests, up to the first one that has to be stored.

        Partitions that others add share the same write. If no request needs a write, start one that
        was wanted for another reason.
        """
        if self.write is not None:
            return
        record = self.record
        if self.lost_markers:
            self.begin(Write(record, changes=False))
            return
        if self.is_overdue and record is not None and not self.rewriting:
            self.begin(Write(transitions.fenced(record, current(record), self.now_ms)))
            return
        write: Write | None = None
        partitions: Set[TxnPartition] = self.partitions
        queue = self.take_waiting()
        for index, waiting in enumerate(queue):
            event = waiting.event
            if write is not None and not (write.takes_more and isinstance(event, Add)):
                self.waiting += queue[index:]
                break
            match self._decide(event, record, partitions):
                case Answered(answer=answer):
                    if write is None or answer.error is not ErrorCode.NONE:
                        self.reply(event.call, answer)
                    else:  # its partitions are only in the write
                        write.answers.append((event, answer))
                case Stored(record=changed, answer=None):
                    write = Write(changed, looked_at_again=[waiting])
                case Stored(record=changed, answer=promised) if promised is not None:
                    write = write or Write(changed, takes_more=isinstance(event, Add))
                    write.record = record = changed
                    write.answers.append((event, promised))
                    if write.takes_more:
                        partitions = frozenset(changed.partitions)
                case _:
                    self._wait(waiting)
        if write is None and self.is_store_wanted:
            write = Write(self.record, changes=False)
        if write is not None:
            self.begin(write)

    def _decide(
        self, event: Request, record: TxnRecord | None, partitions: Set[TxnPartition]
    ) -> Outcome:
        if self.rewriting and not self.is_only_ending:
            return rules.while_rewriting(event)
        match event:
            case Init():
                return rules.init(
                    record,
                    self.transactional_id,
                    event,
                    self.config.max_timeout_ms,
                    self.take_producer_id,
                    self.now_ms,
                )
            case Add():
                return rules.add(record, partitions, event, self.now_ms)
            case End():
                return rules.end(record, event, self.take_producer_id, self.now_ms)

    def _wait(self, waiting: Waiting) -> None:
        """Wait for the markers of the previous transaction."""
        if waiting.until_ms is None:
            waiting.until_ms = self.now_ms + self.config.wait_for_markers_ms
        if waiting.until_ms <= self.now_ms:
            self.refuse(waiting.event, ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self.waiting.append(waiting)
            self.arm_by(TimerKind.MARKERS, waiting.until_ms)

    # --- writes ---

    def _persisted(self, event: Persisted) -> None:
        write = self.write_ended(event.revision)
        if write is None:
            return
        if event.error is ErrorCode.NONE:
            self._stored(write)
        else:
            self._failed(write, event.error)

    def _stored(self, write: Write) -> None:
        self.in_doubt = False
        if write.changes:
            self.completed_ms = None
            self.become(write.record)
        elif write.record is None or self.record is None or write.record.state is self.record.state:
            self.completed_ms = None  # markers may have been written meanwhile
        for request, answer in write.answers:
            self.reply(request.call, answer)
        self.rewrite(write.markers)
        if write.changes:
            self.settle()
        self.waiting[:0] = write.looked_at_again
        self.go_on()

    def _failed(self, write: Write, error: ErrorCode) -> None:
        """Handle a failed write. Nothing has changed, but the store may have the record: a later
        write replaces it. Waiting requests are refused, not kept for the retry."""
        self.in_doubt = True
        self.lost_markers = write.markers + self.lost_markers
        for request in write.requests():
            self.refuse(request, error)
        for waiting in self.take_waiting():
            if write.changes or waiting.until_ms is None:
                self.refuse(waiting.event, error)
            else:
                self.waiting.append(waiting)
        self.arm_by(TimerKind.PERSIST_RETRY, self.now_ms + self.config.persist_retry_ms)

    def settle(self) -> None:
        """Start the steps that follow from a state that was just stored, or read from the store."""
        record = self.record
        if record is None:
            return
        if record.state is TxnState.ONGOING:
            self.arm_by(TimerKind.TIMEOUT, record.started_ms + record.timeout_ms)
            return
        self.is_overdue = False
        if record.state.is_ending:
            if record.partitions:
                self.write_markers(markers_of(record))
            else:
                self.complete(record)

    # --- the end of a transaction ---

    def _markers_written(self, event: MarkersWritten) -> None:
        record = self.record
        self.rewritten(event.number)
        if record is not None and record.state.is_ending and event.number == record.number:
            self.complete(record)
        self.go_on()

    def complete(self, record: TxnRecord) -> None:
        if record.partitions:
            self.last_ended = record
        self.become(transitions.completed(record, self.now_ms))
        self.completed_ms = self.now_ms
        self.arm_by(TimerKind.IDLE, self.now_ms + self.config.complete_after_ms)

    # --- timers ---

    def _timer_fired(self, event: TimerFired) -> None:
        if not self.is_due(event.key):
            return
        match event.key.kind:
            case TimerKind.TIMEOUT:
                self._timeout_fired()
            case TimerKind.MARKERS:
                self._stop_waiting()
            case TimerKind.IDLE:
                self._idle()
            case TimerKind.PERSIST_RETRY:
                if self.in_doubt and self.write is None:
                    self.is_store_wanted = True
                    self.go_on()

    def _timeout_fired(self) -> None:
        record = self.record
        if record is None or record.state is not TxnState.ONGOING:
            return
        deadline_ms = record.started_ms + record.timeout_ms
        if self.now_ms < deadline_ms:  # it was armed for an earlier transaction
            self.arm_by(TimerKind.TIMEOUT, deadline_ms)
            return
        self.is_overdue = True
        self.go_on()

    def _stop_waiting(self) -> None:
        for waiting in self.take_waiting():
            if waiting.until_ms is not None and waiting.until_ms <= self.now_ms:
                self.refuse(waiting.event, ErrorCode.CONCURRENT_TRANSACTIONS)
                continue
            self.waiting.append(waiting)
            if waiting.until_ms is not None:
                self.arm_by(TimerKind.MARKERS, waiting.until_ms)

    def _idle(self) -> None:
        if self.completed_ms is None or self.write is not None:
            return
        due_ms = self.completed_ms + self.config.complete_after_ms
        if self.now_ms < due_ms:  # it was armed for an earlier transaction
            self.arm_by(TimerKind.IDLE, due_ms)
        else:
            self.is_store_wanted = True
            self.go_on()
