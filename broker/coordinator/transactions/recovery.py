"""A transactional id that failed: loaded from the store again (`reloading.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from moldau.broker.coordinator.runtime.recovery import Reloading
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.placement import slot_of
from moldau.broker.store.transactions import TransactionStore
from moldau.broker.txn.effects import Effect
from moldau.broker.txn.record import decode
from moldau.broker.txn.transactions import Transactions

logger = logging.getLogger("moldau.coordinator")


class Shell(Protocol):
    def now_ms(self) -> int: ...

    def run(self, effects: Iterable[Effect]) -> None: ...

    async def writes_ended(self, name: str) -> None: ...


class TransactionReloading(Reloading):
    def __init__(
        self,
        shell: Shell,
        store: TransactionStore,
        transactions: Transactions,
        slots: Slots,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        super().__init__("transactional id", transactions, spawn)
        self._shell = shell
        self._store = store
        self._transactions = transactions
        self._slots = slots
        self._histories: dict[str, bytes] = {}  # of the store, when they failed

    def start(self, name: str) -> None:
        if name not in self._under_way:
            self._histories[name] = self._store.history_token
        super().start(name)

    async def _load(self, name: str) -> None:
        slot = slot_of(name)
        await self._shell.writes_ended(name)  # what is read must not be overtaken
        await self._slots.mended()
        epoch = self._store.taken(slot)
        stored = await self._store.load_one(slot, name)
        record = None if stored is None else decode(stored)
        if not self._transactions.is_reloading(name):
            return
        if epoch is None or self._store.taken(slot) != epoch or not self._slots.is_mended:
            return  # taken again meanwhile, perhaps from another owner: once more
        # What the store has lost since then, no memory has either.
        is_lost = self._histories[name] != self._store.history_token
        now_ms = self._shell.now_ms()
        effects = self._transactions.finish_reloading(name, record, now_ms, history_lost=is_lost)
        logger.warning("transactional id %s is loaded again", name)
        self._shell.run(effects)
