"""The transaction coordinator of a worker: runs the effects of its transactional ids.

The state machine (`broker/txn`) is pure; this is its shell, as `group_coordinator.py` is that of
groups: answers go to the tokens of handlers, records to the store and back as `Persisted` events,
timers to the event loop, markers to `markers.py`. Callbacks throughout: every transaction of every
producer passes here several times, and a task for each write would cost more than the write.

Transactional ids live in the slots of groups (`slots.py`): they are loaded with them, given up with
them, and written again with them when the store has lost its tail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

from moldau.broker.coordinator.runtime.runtime import MachineShell
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.coordinator.transactions.recovery import TransactionReloading
from moldau.broker.coordinator.wholeness import Settled, Wholeness
from moldau.broker.errors import (
    ErrorCode,
    SlotNotTaken,
    StoreFault,
    StoreFenced,
    StoreTimeout,
)
from moldau.broker.machine.effects import (
    ArmTimer,
    CancelTimer,
    Failed,
    Persisted,
    Reply,
    TimerFired,
    TimerKey,
)
from moldau.broker.placement import slot_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.replication import Replication
from moldau.broker.store.transactions import TransactionStore
from moldau.broker.txn.config import TxnConfig
from moldau.broker.txn.effects import Answer, Effect, Persist, StateChanged, WriteMarkers
from moldau.broker.txn.events import Event, MarkersWritten, Request
from moldau.broker.txn.record import TxnRecord, UnknownRecordFormat, decode, encode
from moldau.broker.txn.rules import refuse
from moldau.broker.txn.transaction import Transaction
from moldau.broker.txn.transactions import Transactions
from moldau.broker.txn.views import TxnView

logger = logging.getLogger("moldau.coordinator")

MEND_PATIENCE_S = 15.0  # for slots to be taken again
REPLICATED_WITHIN_S = 5.0
RETRY_S = 0.5
AT_ONCE = 64  # records that are written again in one go
LOG_EVERY_S = 5.0

Written = Callable[[StoreFault | None], None]
_E = TypeVar("_E", Persist, WriteMarkers)


class Token(Protocol):
    """Passed by a handler with a request; answered at once or later."""

    def answered(self, answer: Answer) -> None: ...


class MarkerWriter(Protocol):
    def write(self, wanted: WriteMarkers, done: Callable[[], None]) -> None: ...
    def forget(self, is_forgotten: Callable[[str], bool]) -> None: ...
    def is_writing(self, producers: Collection[int]) -> bool: ...


class Loaded(msgspec.Struct):
    """What was found of a slot."""

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


class TransactionCoordinator(MachineShell[TimerKey]):
    """`take_producer_id` never waits, and may have none."""

    what = "transactional id"

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
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self._store = store
        self._replication = replication
        self._slots = slots
        self._wholeness = wholeness
        self._markers = markers
        self._spawn = spawn
        self._clock = now_ms
        self._log_at = 0.0
        self._writing: dict[str, asyncio.Future[None] | None] = {}  # and who waits for its end
        self.transactions = Transactions(txn_config(config), take_producer_id, slot_of)
        self._reloading = TransactionReloading(self, store, self.transactions, slots, spawn)
        slots.host(self)

    def now_ms(self) -> int:
        return self._clock()

    def use_config(self, config: BrokerConfig) -> None:
        self.transactions.use_config(txn_config(config))

    def loading(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS also while the slots are written again: what the store lost
        may be about to be ended again."""
        if not self._slots.is_current:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.transactions.loading()

    def knows(self, history: bytes) -> bool:
        """Does what is known here hold for this history of the store? Whoever has seen a later one
        must not hear of transactions that lost something since."""
        return self._slots.is_current and self._store.history_token == history

    def is_ending(self, producers: Collection[int]) -> bool:
        """Are markers of one of these being written? Some are those of an earlier transaction."""
        return self._markers.is_writing(producers)

    def views(self) -> list[TxnView]:
        return self.transactions.list()

    def expire(self) -> None:
        """Remove transactional ids that were not used for long."""
        self.run(self.transactions.expire(self.now_ms()))

    # --- events and effects ---

    def submit(self, transactional_id: str, event: Event) -> None:
        """Pass an event to its transactional id. A request's token is answered, now or later."""
        if isinstance(event, Request):
            self._open[event.call] = transactional_id, event
        try:
            effects = self.transactions.handle(transactional_id, event, self.now_ms())
        except Exception as defect:
            self._report_defect(transactional_id, defect)
            return
        self.run(effects)

    def run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Reply:
                reply = cast("Reply[Answer]", effect)
                self._answer(reply.call, reply.answer)
            elif kind is Persist:
                self._run_one(self._persist, cast("Persist", effect))
            elif kind is WriteMarkers:
                self._run_one(self._write_markers, cast("WriteMarkers", effect))
            elif kind is ArmTimer:
                self._arm(cast("ArmTimer", effect))
            elif kind is CancelTimer:
                self._cancel(cast("CancelTimer", effect).key)
            elif kind is Failed:
                failed = cast("Failed", effect)
                self._report_defect(failed.name, failed.defect)
            elif logger.isEnabledFor(logging.DEBUG):
                _report(cast("StateChanged", effect))

    def _run_one(self, work: Callable[[_E], None], effect: _E) -> None:
        """What is not begun would never end: the id would wait for its outcome."""
        try:
            work(effect)
        except Exception as defect:
            self._report_defect(effect.name, defect)

    def _report_defect(self, transactional_id: str, defect: Exception) -> None:
        logger.error("transactional id %s failed", transactional_id, exc_info=defect)
        self._failed(transactional_id)

    def _failed(self, name: str) -> None:
        self._markers.forget(lambda transactional_id: transactional_id == name)
        super()._failed(name)

    def _write_markers(self, wanted: WriteMarkers) -> None:
        event = MarkersWritten(wanted.number)
        self._markers.write(wanted, partial(self.submit, wanted.transactional_id, event))

    def _owner_of(self, key: TimerKey) -> str:
        return key.name

    def _fired(self, key: TimerKey) -> None:
        self.submit(key.name, TimerFired(key))

    def _refusal(self, request: Request, error: ErrorCode) -> Answer:
        return refuse(request, error)

    # --- writing ---

    def _persist(self, effect: Persist) -> None:
        transaction = self.transactions.by_id[effect.name]
        slot = slot_of(effect.name)
        if self._slots.is_settled(slot):
            self._write(effect, partial(self._written, effect, transaction))
        else:  # else it would look as if the store had lost nothing
            fault = SlotNotTaken(f"slot {slot} is being written again")
            self._spawn(self._write_later(effect, transaction, fault))

    def _write(self, effect: Persist, done: Written) -> None:
        """Call `done` once the store has it, and its replicas a decision: what was announced as
        committed must not be undone by a failover."""
        name, record = effect.name, effect.record
        slot = slot_of(name)
        self._writing.setdefault(name, None)
        done = partial(self._write_ended, name, done)
        try:
            if record is None:
                self._store.remove(slot, name, effect.token, done)
                return
            if record.state.is_ending:
                done = partial(self._replicate, done)
            self._store.save(slot, name, effect.token, encode(record), done)
        except Exception:
            del self._writing[name]  # it was never begun
            raise

    def _write_ended(self, name: str, done: Written, fault: StoreFault | None) -> None:
        waiting = self._writing.pop(name, None)
        if waiting is not None:
            waiting.set_result(None)
        done(fault)

    async def writes_ended(self, name: str) -> None:
        """Until nothing of it is on its way to the store."""
        while name in self._writing:
            ended = self._writing[name] = self._loop.create_future()
            await ended

    def _replicate(self, done: Written, fault: StoreFault | None) -> None:
        if fault is not None:
            done(fault)
        else:
            self._replication.within(REPLICATED_WITHIN_S, done)

    def _written(self, effect: Persist, transaction: Transaction, fault: StoreFault | None) -> None:
        if isinstance(fault, StoreFenced | SlotNotTaken):
            self._spawn(self._write_later(effect, transaction, fault))
        else:
            self._persisted(effect, transaction, fault)

    async def _write_later(
        self, effect: Persist, transaction: Transaction, fault: StoreFault
    ) -> None:
        """Once its slot is taken again, if it still is this worker's then."""
        slot = slot_of(effect.name)
        if isinstance(fault, StoreFenced):
            self._slots.fenced(slot)
        elif self._slots.is_mended:
            await asyncio.sleep(RETRY_S)  # not expected; certainly no reason to run in circles
        try:
            await self._slots.mended(MEND_PATIENCE_S)
        except StoreTimeout as late:
            self._persisted(effect, transaction, late)
            return
        if self._owns(transaction):
            self._persist(effect)

    def _owns(self, transaction: Transaction) -> bool:
        """It was not given up meanwhile, and perhaps loaded again with the same revisions."""
        return self.transactions.by_id.get(transaction.transactional_id) is transaction

    def _persisted(
        self, effect: Persist, transaction: Transaction, fault: StoreFault | None
    ) -> None:
        if not self._owns(transaction):
            return  # no outcome is waited for
        error = ErrorCode.NONE
        if fault is not None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._report_fault(effect, fault)
        self.submit(effect.name, Persisted(effect.token, error))

    def _report_fault(self, effect: Persist, fault: StoreFault) -> None:
        now = self._loop.time()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            name = effect.name
            logger.warning("transactional id %s, perhaps others: not stored: %s", name, fault)

    # --- slots (see `slots.Guest`) ---

    def start_loading(self, slot: int) -> None:
        self._wholeness.in_doubt(slot)
        self.transactions.start_loading(slot)

    async def read(self, slot: int) -> Loaded:
        token = self._store.history_token
        settled = await self._wholeness.settled(slot)
        return Loaded(await self._records(slot), token, settled)

    def loaded(self, slot: int, found: Loaded) -> None:
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
        writes = self._run_but_writes(effects)
        if writes or found.settled != (found.token, False):
            self._spawn(self._settle(slot, found.token, writes))
        else:
            self._wholeness.is_whole(slot, found.token)

    async def _settle(self, slot: int, token: bytes, writes: list[Persist]) -> None:
        """Note that nothing is lost, as soon as that is so. If it cannot be noted, the next worker
        takes all for lost again: no harm."""
        try:
            await self._write_all(writes)
            await self._wholeness.settle(slot, token)
        except StoreFault as fault:
            logger.warning("slot %d: the history of its transactions: %s", slot, fault)

    def give_up(self, slot: int) -> None:
        for effect in self.transactions.give_up(slot, self.now_ms()):
            if isinstance(effect, Failed):  # it is not ours any more: there is nothing to load
                name = effect.name
                logger.error("transactional id %s failed", name, exc_info=effect.defect)
                self._abandon(name, ErrorCode.NOT_COORDINATOR)
            else:
                self.run((effect,))
        self._markers.forget(lambda transactional_id: slot_of(transactional_id) == slot)

    async def write_again(self, slot: int) -> int:
        if not self.transactions.is_loaded(slot):
            return 0
        self._wholeness.in_doubt(slot)
        token = self._store.history_token
        found = await self._records(slot)
        effects = self.transactions.store_again(
            slot, found, self.now_ms(), lost_records=not self._replication.kept_all
        )
        writes = self._run_but_writes(effects)
        await self._write_all(writes)
        await self._wholeness.settle(slot, token)
        return len(writes)

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

    def _run_but_writes(self, effects: Iterable[Effect]) -> list[Persist]:
        writes: list[Persist] = []
        for effect in effects:
            if isinstance(effect, Persist):
                writes.append(effect)
            else:
                self.run((effect,))
        return writes

    async def _write_all(self, writes: list[Persist]) -> None:
        """Raises StoreFault."""
        for start in range(0, len(writes), AT_ONCE):
            some = writes[start : start + AT_ONCE]
            faults = await asyncio.gather(*map(self._write_now, some))
            for fault in faults:
                if fault is not None:
                    raise fault

    async def _write_now(self, effect: Persist) -> StoreFault | None:
        transaction = self.transactions.by_id.get(effect.name)
        if transaction is None:
            return None  # given up meanwhile
        outcome: asyncio.Future[StoreFault | None] = self._loop.create_future()
        self._write(effect, outcome.set_result)
        fault = await outcome
        self._persisted(effect, transaction, fault)
        return fault


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
