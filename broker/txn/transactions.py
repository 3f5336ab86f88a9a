"""The transactional ids of one worker, and what is answered for unknown, loading and foreign ones.

No I/O: the coordinator says which slots the worker owns and what was found in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from moldau.broker.errors import ErrorCode
from moldau.broker.machine.effects import Reply
from moldau.broker.machine.slot_table import SlotTable
from moldau.broker.txn import recovery
from moldau.broker.txn.config import TxnConfig
from moldau.broker.txn.effects import Effect
from moldau.broker.txn.events import Add, End, Event, Init, Request
from moldau.broker.txn.record import TxnRecord
from moldau.broker.txn.rules import TakeProducerId, refuse
from moldau.broker.txn.transaction import Transaction
from moldau.broker.txn.views import TxnView, view

Effects: TypeAlias = list[Effect]
Views: TypeAlias = list[TxnView]  # in the class, `list` is the method


class Transactions(SlotTable[Transaction]):
    """A transactional id belongs to a slot, as groups do."""

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
        history_lost: bool = False,
        lost_records: bool = False,
    ) -> Effects:
        """The transactions go on as they were stored.

        `history_lost`: the store may have had later records, with epochs that producers know.
        `lost_records`: logs may have, as for `store_again`.
        """
        effects: Effects = []
        for record in records:
            restore = partial(
                self._restore,
                record,
                now_ms,
                history_lost=history_lost,
                lost_records=lost_records,
            )
            effects += self.guarded(record.transactional_id, restore)
        self._finish_loading(slot)
        return effects

    def finish_reloading(
        self, transactional_id: str, record: TxnRecord | None, now_ms: int, *, history_lost: bool
    ) -> Effects:
        """Like `finish_loading`, for one that failed. Without a record it is not known."""
        effects: Effects = []
        if record is not None:
            effects = self._restore(
                record, now_ms, history_lost=history_lost, lost_records=history_lost
            )
        self._reloading.discard(transactional_id)
        return effects

    def store_again(
        self, slot: int, found: Iterable[TxnRecord], now_ms: int, *, lost_records: bool = False
    ) -> Effects:
        """The store lost its tail, and has this of the slot: what differs is written again, and
        markers that may be lost too.

        `lost_records`: acknowledged records as well, perhaps. A transaction that is open could be
        committed without some of its own, so its producer has to abort it.
        """
        stored = {record.transactional_id: record for record in found}
        effects: Effects = []
        for transaction in self.of_slot(slot):
            record = stored.pop(transaction.transactional_id, None)
            if lost_records:
                effects += self.guarded(
                    transaction.transactional_id, partial(recovery.maim, transaction, now_ms)
                )
            again = partial(recovery.store_again, transaction, record, now_ms)
            effects += self.guarded(transaction.transactional_id, again)
        for record in stored.values():  # removed here, and back
            if not self.is_reloading(record.transactional_id):
                restore = partial(self._restore, record, now_ms, history_lost=True)
                effects += self.guarded(record.transactional_id, restore)
        return effects

    def give_up(self, slot: int, now_ms: int) -> Effects:
        """Another worker owns the slot from now on, or this one stops."""
        effects: Effects = []
        for transaction in self._give_up(slot):
            effects += self.guarded(
                transaction.transactional_id, partial(recovery.unload, transaction, now_ms)
            )
        return effects

    def use_config(self, config: TxnConfig) -> None:
        """Use other limits from now on; requests that wait and armed timers keep theirs."""
        self.config = config
        for transaction in self.by_id.values():
            transaction.config = config

    # --- events ---

    def handle(self, transactional_id: str, event: Event, now_ms: int) -> Effects:
        transaction = self.by_id.get(transactional_id)
        if transaction is not None:
            return self._handle(transaction, event, now_ms)
        if not isinstance(event, Init | Add | End):
            return []  # given up, or removed, in the meantime
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

    # --- what is shown ---

    def describe(self, transactional_id: str) -> TxnView | None:
        transaction = self.by_id.get(transactional_id)
        record = None if transaction is None else transaction.record
        return None if record is None else view(record)

    def list(self) -> Views:
        records = (transaction.record for transaction in self.by_id.values())
        return [view(record) for record in records if record is not None]

    # --- underneath ---

    def _restore(
        self, record: TxnRecord, now_ms: int, *, history_lost: bool, lost_records: bool = False
    ) -> Effects:
        transaction, effects = recovery.restore(
            record,
            self.config,
            self._take_producer_id,
            now_ms,
            history_lost=history_lost,
            lost_records=lost_records,
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
