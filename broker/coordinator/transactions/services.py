"""Wires together what a worker needs for transactions."""

from __future__ import annotations

from functools import partial

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.peers import Peers
from moldau.broker.coordinator.transactions.coordinator import (
    REPLICATED_WITHIN_S,
    TransactionCoordinator,
)
from moldau.broker.coordinator.transactions.enlistment import Enlistment
from moldau.broker.coordinator.transactions.hanging_transactions import HangingTransactions
from moldau.broker.coordinator.transactions.local_markers import LocalMarkers
from moldau.broker.coordinator.transactions.markers import Markers
from moldau.broker.coordinator.transactions.producer_ids import ProducerIds
from moldau.broker.coordinator.wholeness import Wholeness
from moldau.broker.log.logs import Logs
from moldau.broker.log.topics import Topics
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import WorkerSettings
from moldau.broker.store.store import Store


class TransactionServices:
    """Made before the groups of the worker are loaded: transactional ids are loaded with them."""

    def __init__(
        self,
        settings: WorkerSettings,
        store: Store,
        topics: Topics,
        logs: Logs,
        groups: GroupCoordinator,
        config: BrokerConfig,
    ) -> None:
        worker, workers = settings.index, settings.workers

        def history() -> bytes:
            """The history this worker sees now; others may notice a change earlier or later."""
            return store.history.token

        self.peers = Peers(settings.worker_sockets, worker)
        self.producer_ids = ProducerIds(store.topics.take_producer_ids)
        self.local_markers = LocalMarkers(topics, logs, groups.transactional, logs.spawn)
        self._wholeness = Wholeness(store.transactions, store.confirmation, groups.slots.numbers)
        self._is_kept = store.history.is_kept
        self.coordinator = TransactionCoordinator(
            store.transactions,
            store.replication,
            groups.slots,
            self._wholeness,
            Markers(self.local_markers, self.peers, history, worker=worker, workers=workers),
            config,
            take_producer_id=self.producer_ids.take,
            spawn=logs.spawn,
            now_ms=groups.now_ms,
        )
        groups.transactional.when_replicated = partial(
            store.replication.within, REPLICATED_WITHIN_S
        )
        self.enlistment = Enlistment(
            self.coordinator,
            self.peers,
            history,
            worker=worker,
            workers=workers,
        )
        logs.enlistment = self.enlistment
        logs.hanging_transactions = HangingTransactions(
            self.coordinator,
            self.peers,
            history,
            logs.spawn,
            worker=worker,
            workers=workers,
        )

    async def close_slots(self) -> None:
        """Call it after the last write. A store that keeps its history needs no more proof."""
        if not self._is_kept:
            await self._wholeness.close()

    def close(self) -> None:
        self.peers.close()
        self.producer_ids.close()
