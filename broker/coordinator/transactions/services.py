"""Builds and connects the parts of a worker that serve transactions."""

from __future__ import annotations

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.peers import Peers
from moldau.broker.coordinator.transactions.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transactions.enlistment import Enlistment
from moldau.broker.coordinator.transactions.hanging_transactions import HangingTransactions
from moldau.broker.coordinator.transactions.markers import LocalMarkers, Markers
from moldau.broker.coordinator.transactions.producer_ids import ProducerIds
from moldau.broker.log.logs import Logs
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import WorkerSettings
from moldau.broker.store.store import Store
from moldau.broker.store_loss.clean_shutdown import CleanShutdown
from moldau.broker.topics.topics import Topics


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

        self.peers = Peers(settings.worker_sockets, worker)
        self.producer_ids = ProducerIds(store.topics.take_producer_ids)
        self.local_markers = LocalMarkers(topics, logs, groups.transactional, logs.spawn)
        self._clean_shutdown = CleanShutdown(
            store.transactions, store.confirmation, groups.slots.numbers
        )
        self._is_kept = store.identity.is_kept
        self.coordinator = TransactionCoordinator(
            store.transactions,
            store.replication,
            groups.slots,
            self._clean_shutdown,
            Markers(self.local_markers, self.peers, store.identity, worker=worker, workers=workers),
            config,
            take_producer_id=self.producer_ids.take,
            spawn=logs.spawn,
        )
        self.enlistment = Enlistment(
            self.coordinator,
            self.peers,
            store.identity,
            worker=worker,
            workers=workers,
        )
        self.hanging_transactions = HangingTransactions(
            self.coordinator,
            self.peers,
            store.identity,
            logs.spawn,
            worker=worker,
            workers=workers,
        )

    async def close_slots(self) -> None:
        """Call it after the last write. A store that keeps its id over a restart needs no more."""
        if not self._is_kept:
            await self._clean_shutdown.close()

    def close(self) -> None:
        self.peers.close()
        self.producer_ids.close()
