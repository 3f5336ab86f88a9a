"""Everything of a worker that takes part in transactions, wired together."""

from __future__ import annotations

from functools import partial

from moldau.broker.coordinator.group_coordinator import GroupCoordinator
from moldau.broker.coordinator.joins import Joins
from moldau.broker.coordinator.local_markers import LocalMarkers
from moldau.broker.coordinator.markers import Markers
from moldau.broker.coordinator.orphans import Orphans
from moldau.broker.coordinator.peers import Peers
from moldau.broker.coordinator.producer_ids import ProducerIds
from moldau.broker.coordinator.transaction_coordinator import (
    REPLICATED_WITHIN_S,
    TransactionCoordinator,
)
from moldau.broker.coordinator.wholeness import Wholeness
from moldau.broker.log.logs import Logs
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import WorkerSettings
from moldau.broker.store.store import Store
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

        def history() -> bytes:
            """As this worker sees it just now: others may have noticed a change already, or not."""
            return store.history.token

        self.peers = Peers(settings.worker_sockets, worker)
        self.producer_ids = ProducerIds(store.topics.take_producer_ids)
        self.local_markers = LocalMarkers(topics, logs, groups, logs.spawn)
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
        self.joins = Joins(
            self.coordinator,
            self.peers,
            history,
            worker=worker,
            workers=workers,
        )
        logs.joins = self.joins
        logs.orphans = Orphans(
            self.coordinator,
            self.peers,
            history,
            logs.spawn,
            worker=worker,
            workers=workers,
        )

    async def close_slots(self) -> None:
        """Behind the last write. A store that keeps its history needs no more proof."""
        if not self._is_kept:
            await self._wholeness.close()

    def close(self) -> None:
        self.peers.close()
        self.producer_ids.close()
