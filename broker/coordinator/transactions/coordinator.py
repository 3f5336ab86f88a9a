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

from moldau.broker.coordinator.runtime.runtime import Runtime, Spawn
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.coordinator.runtime.writes import Written
from moldau.broker.coordinator.wholeness import Settled, Wholeness
from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.placement import slot_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.replication import Replication
from moldau.broker.store.transactions import TransactionStore
from moldau.broker.txn.config import TxnConfig
from moldau.broker.txn.effects import Answer, Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Add, End, Init, MarkersWritten, Request
from moldau.broker.txn.record import TxnRecord, UnknownRecordFormat, decode, encode
from moldau.broker.txn.rules import refuse
from moldau.broker.txn.transactions import Transactions
from moldau.broker.txn.views import TxnView

logger = logging.getLogger("moldau.coordinator")

REPLICATED_WITHIN_S = 5.0


class Token(Protocol):
    """Passed by a handler with a request; answered at once or later."""

    def answered(self, answer: Answer) -> None: ...


class MarkerWriter(Protocol):
    def write(self, wanted: WriteMarkers, done: Callable[[], None]) -> None: ...
    def forget(self, is_forgotten: Callable[[str], bool]) -> None: ...
    def is_writing(self, producers: Collection[int]) -> bool: ...


class Loaded(msgspec.Struct):
    """A slot as it was found in the store."""

    records: list[TxnRecord]
    token: bytes  # of the history in which it was found
    settled: Settled  # when it was last known to be whole

    @property
    def is_of_another_history(self) -> bool:
        before = self.settled.history
        return bool(before and self.token) and before != self.token

    @property
    def is_lost(self) -> bool:
        """The store may have had more, which no worker knows."""
        return self.is_of_another_history and not self.settled.is_closed


class TransactionCoordinator(Runtime[Persist]):
    """`take_producer_id` never waits, and may have none."""

    kind = "transactional id"
    requests = frozenset({Init, Add, End})

    def __init__(
        self,
        store: TransactionStore,
        replication: Replication,
        slots: Slots,
        wholeness: Wholeness,
        markers: MarkerWriter,
        config: BrokerConfig,
        *,
        take_producer_id: Callable[[], int],
        spawn: Spawn,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._replication = replication
        self._wholeness = wholeness
        self._markers = markers
        self._clock = now_ms
        self.transactions = Transactions(txn_config(config), take_producer_id, slot_of)
        super().__init__(self.transactions, slots, spawn)

    def now_ms(self) -> int:
        return self._clock()

    def use_config(self, config: BrokerConfig) -> None:
        self.transactions.use_config(txn_config(config))

    def loading(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS also while the slots are written again: what the store lost
        may be about to be ended again."""
        if not self.slots.is_current:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.transactions.loading()

    def knows(self, history: bytes) -> bool:
        """Does what is known here hold for this history of the store? Whoever has seen a later one
        must not hear of transactions that lost something since."""
        return self.slots.is_current and self._store.history_token == history

    def is_ending(self, producers: Collection[int]) -> bool:
        """Are markers of one of these being written? Some are those of an earlier transaction."""
        return self._markers.is_writing(producers)

    def views(self) -> list[TxnView]:
        return self.transactions.list()

    def expire(self) -> None:
        """Remove transactional ids that were not used for long."""
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
        return self.slots.is_settled(slot)

    def write(self, effect: Persist, done: Written) -> None:
        """Call `done` once the store has it, and its replicas a decision: what was announced as
        committed must not be undone by a failover."""
        name, record = effect.name, effect.record
        slot = slot_of(name)
        if record is None:
            self._store.remove(slot, name, effect.token, done)
            return
        if record.state.is_ending:
            done = partial(self._replicate, done)
        self._store.save(slot, name, effect.token, encode(record), done)

    def _replicate(self, done: Written, fault: StoreFault | None) -> None:
        if fault is not None:
            done(fault)
        else:
            self._replication.within(REPLICATED_WITHIN_S, done)

    # --- loading ---

    def start_loading(self, slot: int) -> None:
        self._wholeness.in_doubt(slot)
        super().start_loading(slot)

    async def read(self, slot: int) -> Loaded:
        token = self._store.history_token
        settled = await self._wholeness.settled(slot)
        return Loaded(await self._records(slot), token, settled)

    async def loaded(self, slot: int, found: Loaded) -> None:
        effects = self.transactions.finish_loading(
            slot,
            found.records,
            self.now_ms(),
            history_lost=found.is_lost,
            # Logs of workers that went on may have lost some, although this slot has not.
            lost_records=found.is_of_another_history,
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
        if writes or found.settled != (found.token, False):
            self.spawn(self._settle(slot, found.token, writes))
        else:
            self._wholeness.is_whole(slot, found.token)

    async def _settle(self, slot: int, token: bytes, writes: list[Persist]) -> None:
        """Note that nothing is lost, as soon as that is so. If it cannot be noted, the next worker
        takes all for lost again: no harm."""
        try:
            await self.writes.persist_now(writes)
            await self._wholeness.settle(slot, token)
        except StoreFault as fault:
            logger.warning("slot %d: the history of its transactions: %s", slot, fault)

    def give_up(self, slot: int) -> None:
        super().give_up(slot)
        self.forget(lambda transactional_id: slot_of(transactional_id) == slot)

    async def write_again(self, slot: int) -> int:
        self._wholeness.in_doubt(slot)
        token = self._store.history_token
        found = await self._records(slot)
        effects = self.transactions.store_again(
            slot, found, self.now_ms(), lost_records=not self._replication.kept_all
        )
        written = await self.writes.persist_now(effects)
        await self._wholeness.settle(slot, token)
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

    def restore_one(
        self, name: str, found: TxnRecord | None, *, history_lost: bool
    ) -> list[Effect]:
        return self.transactions.finish_reloading(
            name, found, self.now_ms(), history_lost=history_lost
        )


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
