"""The transactional ids of one worker, and the answers for unknown, loading and foreign ids.

There is no I/O here: the coordinator says which slots the worker owns and what the store contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import Reply, SlotTable
from moldau.broker.txn import recovery
from moldau.broker.txn.effects import Effect
from moldau.broker.txn.events import Add, End, Event, Init, Request
from moldau.broker.txn.record import TxnRecord, TxnView, view
from moldau.broker.txn.rules import TakeProducerId, refuse
from moldau.broker.txn.transaction import Transaction
from moldau.broker.txn.transaction_data import TxnConfig

Effects: TypeAlias = list[Effect]
Views: TypeAlias = list[TxnView]  # inside the class, `list` is the method


class Transactions(SlotTable[Transaction]):
    """The transactional ids of a worker. An id belongs to a slot, like a group."""

    def __init__(
        self,
        config: TxnConfig,
        take_producer_id: TakeProducerId,
        slot_of: Callable[[str], int],
    ) -> None:
        super().__init__(slot_of)
        self.config = config
        self._take_producer_id = take_producer_id

    # --- slots ---

    def finish_loading(
        self,
        slot: int,
        records: Iterable[TxnRecord],
        now_ms: int,
        *,
        is_stale: bool = False,
        require_abort: bool = False,
    ) -> Effects:
        """The transactions go on as they were stored.

        `is_stale`: the store may have had later records, with epochs that producers know.
        `require_abort`: logs may have, as for `store_again`.
        """
        effects: Effects = []
        for record in records:
            restore = partial(
                self._restore,
                record,
                now_ms,
                is_stale=is_stale,
                require_abort=require_abort,
            )
            effects += self.guarded(record.transactional_id, restore)
        self._finish_loading(slot)
        return effects

    def finish_reloading(
        self, transactional_id: str, record: TxnRecord | None, now_ms: int, *, is_stale: bool
    ) -> Effects:
        """Like `finish_loading`, for one that failed. Without a record it is not known."""
        effects: Effects = []
        if record is not None:
            effects = self._restore(record, now_ms, is_stale=is_stale, require_abort=is_stale)
        self._reloading.discard(transactional_id)
        return effects

    def store_again(
        self, slot: int, found: Iterable[TxnRecord], now_ms: int, *, require_abort: bool = False
    ) -> Effects:
        """The store lost its tail, and has these records of the slot: others are written again, and
        so are markers that may be lost.

        `require_abort`: acknowledged records as well, perhaps. A transaction that is open could be
        committed without some of its own, so its producer has to abort it.
        """
        stored = {record.transactional_id: record for record in found}
        effects: Effects = []
        for transaction in self.of_slot(slot):
            record = stored.pop(transaction.transactional_id, None)
            if require_abort:
                effects += self.guarded(
                    transaction.transactional_id,
                    partial(recovery.require_abort, transaction, now_ms),
                )
            again = partial(recovery.store_again, transaction, record, now_ms)
            effects += self.guarded(transaction.transactional_id, again)
        for record in stored.values():  # removed here, and back
            if not self.is_reloading(record.transactional_id):
                restore = partial(self._restore, record, now_ms, is_stale=True)
                effects += self.guarded(record.transactional_id, restore)
        return effects

    def give_up(self, slot: int, now_ms: int) -> Effects:
        """Give the slot up: another worker owns it, or this one stops."""
        effects: Effects = []
        for transaction in self._give_up(slot):
            effects += self.guarded(
                transaction.transactional_id, partial(recovery.unload, transaction, now_ms)
            )
        return effects

    def use_config(self, config: TxnConfig) -> None:
        """Apply other limits from now on. Waiting requests and armed timers keep theirs."""
        self.config = config
        for transaction in self.by_id.values():
            transaction.config = config

    # --- events ---

    def handle(self, transactional_id: str, event: Event, now_ms: int) -> Effects:
        transaction = self.by_id.get(transactional_id)
        if transaction is not None:
            return self._handle(transaction, event, now_ms)
        if not isinstance(event, Init | Add | End):
            return []  # given up or removed meanwhile
        error = self._unavailable(transactional_id, event)
        if error is not ErrorCode.NONE:
            return [Reply(event.call, refuse(event, error))]
        transaction = Transaction(transactional_id, self.config, self._take_producer_id, now_ms)
        self.put(transactional_id, transaction)
        return self._handle(transaction, event, now_ms)

    def expire(self, now_ms: int) -> Effects:
        """Remove ids that have not been used for `transactional.id.expiration.ms`."""
        effects: Effects = []
        for transaction in self.by_id.values():
            effects += self.guarded(
                transaction.transactional_id, partial(transaction.expire, now_ms)
            )
        return effects

    # --- views ---

    def describe(self, transactional_id: str) -> TxnView | None:
        transaction = self.by_id.get(transactional_id)
        record = None if transaction is None else transaction.record
        return None if record is None else view(record)

    def list(self) -> Views:
        records = (transaction.record for transaction in self.by_id.values())
        return [view(record) for record in records if record is not None]

    # --- helpers ---

    def _restore(
        self, record: TxnRecord, now_ms: int, *, is_stale: bool, require_abort: bool = False
    ) -> Effects:
        transaction, effects = recovery.restore(
            record,
            self.config,
            self._take_producer_id,
            now_ms,
            is_stale=is_stale,
            require_abort=require_abort,
        )
        self.put(record.transactional_id, transaction)
        return effects

    def _handle(self, transaction: Transaction, event: Event, now_ms: int) -> Effects:
        effects = transaction.handle(event, now_ms)
        if transaction.is_gone:
            transaction.cancel_all_timers()
            effects += transaction.take_effects()
            self.drop(transaction.transactional_id)
        return effects

    def _unavailable(self, transactional_id: str, event: Request) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        error = self.availability(transactional_id)
        if error is ErrorCode.NONE and not isinstance(event, Init):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return error
