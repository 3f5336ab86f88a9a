"""The transaction coordinator of a worker: an adapter of the runtime for transactional ids
(`broker/txn`). Their markers are written by `markers.py`.

Transactional ids live in the slots of groups: they are loaded with them, given up with them, and
written again with them when the store has lost its tail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

import msgspec

from moldau.broker.coordinator.runtime.runtime import Runtime, Spawn, Written
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.placement import slot_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.replication import Replication
from moldau.broker.store.transactions import TransactionStore
from moldau.broker.store_loss.clean_shutdown import CleanShutdown, LastIntact
from moldau.broker.txn.effects import Answer, Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Add, End, Init, MarkersWritten, Request
from moldau.broker.txn.record import TxnRecord, TxnView, UnknownRecordFormat, decode, encode
from moldau.broker.txn.rules import refuse
from moldau.broker.txn.transaction_data import TxnConfig
from moldau.broker.txn.transactions import Transactions

logger = logging.getLogger("moldau.coordinator")

REPLICATED_WITHIN_S = 5.0


class ReplyHandle(Protocol):
    """Passed by a handler with a request; answered at once or later."""

    def answered(self, answer: Answer) -> None: ...


class MarkerWriter(Protocol):
    def write(self, wanted: WriteMarkers, done: Callable[[], None]) -> None: ...
    def forget(self, is_forgotten: Callable[[str], bool]) -> None: ...
    def is_writing(self, producers: Collection[int]) -> bool: ...


class Loaded(msgspec.Struct):
    """A slot as it was found in the store."""

    records: list[TxnRecord]
    store_id: bytes  # when it was loaded
    last_intact: LastIntact

    @property
    def is_of_another_store(self) -> bool:
        before = self.last_intact.store_id
        return bool(before and self.store_id) and before != self.store_id

    @property
    def is_lost(self) -> bool:
        """The store may have had more, which no worker knows."""
        return self.is_of_another_store and not self.last_intact.is_clean


class TransactionCoordinator(Runtime[Persist]):
    """`take_producer_id` never waits, and may have none."""

    kind = "transactional id"
    requests = frozenset({Init, Add, End})

    def __init__(
        self,
        store: TransactionStore,
        replication: Replication,
        slots: Slots,
        clean_shutdown: CleanShutdown,
        markers: MarkerWriter,
        config: BrokerConfig,
        *,
        take_producer_id: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._store = store
        self._replication = replication
        self._clean_shutdown = clean_shutdown
        self._markers = markers
        self.transactions = Transactions(txn_config(config), take_producer_id, slot_of)
        super().__init__(self.transactions, slots, spawn)

    def use_config(self, config: BrokerConfig) -> None:
        self.transactions.use_config(txn_config(config))

    def loading(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS also while the slots are written again: transactions that
        the store lost may be about to be ended again."""
        if not self.slots.is_current:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.transactions.loading()

    def knows(self, store_id: bytes) -> bool:
        """True if this coordinator has seen the same store id. Who has seen a later one must not be
        told of transactions that lost something since."""
        return self.slots.is_current and self._store.store_id == store_id

    def is_ending(self, producers: Collection[int]) -> bool:
        """True if markers of one of these producers are being written, perhaps those of an earlier
        transaction."""
        return self._markers.is_writing(producers)

    def views(self) -> list[TxnView]:
        return self.transactions.list()

    def expire(self) -> None:
        """Remove transactional ids that have not been used for a long time."""
        self.run(self.transactions.expire(self.now_ms()))

    # --- effects ---

    def runners(self) -> dict[type, Callable[[Any], None]]:
        return {
            Persist: self.writes.persist,
            WriteMarkers: self._write_markers,
            StateChanged: _report,
        }

    def refusal(self, request: Request, error: ErrorCode) -> Answer:
        return refuse(request, error)

    def _write_markers(self, wanted: WriteMarkers) -> None:
        self._markers.write(wanted, partial(self._markers_written, wanted))

    def _markers_written(self, wanted: WriteMarkers) -> None:
        self.submit(wanted.transactional_id, MarkersWritten(wanted.number))

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        self._markers.forget(is_forgotten)

    # --- writing ---

    def may_write(self, slot: int) -> bool:
        # A newer record would hide from `write_again` that the store has lost something.
        return not self.slots.is_stale(slot)

    def write(self, effect: Persist, done: Written) -> None:
        """Call `done` once the store has the record. A decision must have reached the replicas
        too: a failover must not undo a transaction that was announced as committed."""
        name, record = effect.name, effect.record
        slot = slot_of(name)
        if record is None:
            self._store.remove(slot, name, effect.revision, done)
            return
        if record.state.is_ending:
            done = partial(self._replicate, done)
        self._store.save(slot, name, effect.revision, encode(record), done)

    def _replicate(self, done: Written, fault: StoreFault | None) -> None:
        if fault is not None:
            done(fault)
        else:
            self._replication.within(REPLICATED_WITHIN_S, done)

    # --- loading ---

    def start_loading(self, slot: int) -> None:
        self._clean_shutdown.unmark(slot)
        super().start_loading(slot)

    async def read(self, slot: int) -> Loaded:
        store_id = self._store.store_id
        last_intact = await self._clean_shutdown.last_intact(slot)
        return Loaded(await self._records(slot), store_id, last_intact)

    async def loaded(self, slot: int, found: Loaded) -> None:
        effects = self.transactions.finish_loading(
            slot,
            found.records,
            self.now_ms(),
            is_stale=found.is_lost,
            # Logs of workers that went on may have lost some, although this slot has not.
            require_abort=found.is_of_another_store,
        )
        if found.is_lost and found.records:
            logger.warning(
                "the store may have lost something of the %d transactional ids of slot %d: "
                "their producers are fenced",
                len(found.records),
                slot,
            )
        writes = [effect for effect in effects if type(effect) is Persist]
        self.run(effect for effect in effects if type(effect) is not Persist)
        if writes or found.last_intact != (found.store_id, False):
            self.spawn(self._save_intact(slot, found.store_id, writes))
        else:
            self._clean_shutdown.mark_intact(slot, found.store_id)

    async def _save_intact(self, slot: int, store_id: bytes, writes: list[Persist]) -> None:
        """Note that nothing is lost, as soon as that is so. If it cannot be noted, the next worker
        takes all for lost again: no harm."""
        try:
            await self.writes.persist_now(writes)
            await self._clean_shutdown.save_intact(slot, store_id)
        except StoreFault as fault:
            logger.warning(
                "slot %d: that its transactional ids are intact is not noted: %s", slot, fault
            )

    def give_up(self, slot: int) -> None:
        super().give_up(slot)
        self.forget(lambda transactional_id: slot_of(transactional_id) == slot)

    async def write_again(self, slot: int) -> int:
        self._clean_shutdown.unmark(slot)
        store_id = self._store.store_id
        found = await self._records(slot)
        effects = self.transactions.store_again(
            slot, found, self.now_ms(), require_abort=not self._replication.kept_all
        )
        written = await self.writes.persist_now(effects)
        await self._clean_shutdown.save_intact(slot, store_id)
        return written

    async def _records(self, slot: int) -> list[TxnRecord]:
        records = []
        for stored in await self._store.load(slot):
            try:
                records.append(decode(stored.record))
            except (UnknownRecordFormat, msgspec.DecodeError) as fault:
                # Its writes are refused by its revision, so nothing of it is overwritten.
                name = stored.transactional_id
                logger.critical("transactional id %s cannot be served: %s", name, fault)
        return records

    async def read_one(self, slot: int, name: str) -> TxnRecord | None:
        stored = await self._store.load_one(slot, name)
        return None if stored is None else decode(stored)

    def restore_one(self, name: str, found: TxnRecord | None, *, is_stale: bool) -> list[Effect]:
        return self.transactions.finish_reloading(name, found, self.now_ms(), is_stale=is_stale)


def _report(changed: StateChanged) -> None:
    logger.debug(
        "transactional id %s: %s -> %s, transaction %d",
        changed.transactional_id,
        changed.previous,
        changed.state,
        changed.number,
    )


def txn_config(config: BrokerConfig) -> TxnConfig:
    return TxnConfig(
        max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
    )
