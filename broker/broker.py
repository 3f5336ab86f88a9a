"""What handlers work with: one worker's logs, groups, topics, access and configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from moldau.broker.access.acls import Acls
from moldau.broker.access.audit import Audit
from moldau.broker.access.connection_limiter import ConnectionLimiter
from moldau.broker.access.quotas import Quotas
from moldau.broker.access.tokens import Tokens
from moldau.broker.access.users import Users
from moldau.broker.coordinator.client_telemetry import ClientTelemetry
from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.groups.settings import GroupSettings
from moldau.broker.coordinator.transactions.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transactions.enlistment import Enlistment
from moldau.broker.coordinator.transactions.markers import LocalMarkers
from moldau.broker.coordinator.transactions.producer_ids import ProducerIds
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.logs import Logs
from moldau.broker.logging_setup import LogLevels
from moldau.broker.metrics.access_counters import AccessCounters
from moldau.broker.placement import leader_of
from moldau.broker.security.authorizer import Authorizer
from moldau.broker.server.limits import Deadlines
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import Endpoint, WorkerSettings
from moldau.broker.settings.static_config import connection_limits
from moldau.broker.store.store import Store
from moldau.broker.topics.topics import Topic, Topics


class Parked(Protocol):
    """A request that waits for something to happen, and can be answered at any time."""

    def finish(self) -> None: ...


@dataclass(eq=False, repr=False)
class Broker:
    settings: WorkerSettings
    store: Store
    topics: Topics
    logs: Logs
    group_coordinator: GroupCoordinator
    group_settings: GroupSettings
    transactions: TransactionCoordinator
    enlistment: Enlistment
    local_markers: LocalMarkers
    producer_ids: ProducerIds
    cluster_id: str
    authorizer: Authorizer
    acls: Acls | None  # None: there is no authorizer
    audit: Audit
    users: Users
    tokens: Tokens
    quotas: Quotas
    limiter: ConnectionLimiter
    telemetry: ClientTelemetry | None  # None: clients are not asked for metrics
    log_levels: LogLevels

    def __post_init__(self) -> None:
        self.access = AccessCounters()
        self.deadlines = Deadlines()
        self.parked: set[Parked] = set()
        self.loop_time = asyncio.get_running_loop().time
        nodes = self.settings.listeners[0].brokers
        self.nodes = [node.node_id for node in nodes]
        self.node_id = self.settings.index if len(nodes) > 1 else nodes[0].node_id
        self.on_config: Callable[[BrokerConfig], None] = lambda config: None  # it has changed
        self.fetch_max_bytes = 0
        self.auto_create = False

    # --- configuration ---

    @property
    def config(self) -> BrokerConfig:
        return self.topics.broker

    def use_config(self, config: BrokerConfig) -> None:
        """Pass on a changed configuration, and remember what requests look at."""
        self.topics.use_broker_config(config)
        self.use_group_settings()
        self.transactions.use_config(config)
        self.limiter.counts.limits = connection_limits(config)
        self.fetch_max_bytes = config.get_int("fetch.max.bytes")
        self.auto_create = config.get_bool("auto.create.topics.enable")
        self.on_config(config)

    def use_group_settings(self) -> None:
        self.group_coordinator.use_config(self.config, self.group_settings.by_id)

    async def load_config(self) -> None:
        self.use_config(await self.config_of(str(self.node_id)))

    async def config_of(self, node: str) -> BrokerConfig:
        """The configuration in force on a broker; for "", the default of all brokers."""
        dynamic = await self.store.topics.broker_configs()
        return BrokerConfig(self.config.static, dynamic.get("", {}), dynamic.get(node, {}))

    async def changes_applied(self) -> None:
        """Wait until all workers serve what this one changed. Awaited before the reply to a
        change."""
        await self.store.topics.change_acks.wait()

    # --- brokers, as they are advertised ---

    def endpoints(self, listener: str) -> list[Endpoint]:
        """The addresses of brokers for clients of `listener`."""
        return self.settings.endpoints(listener)

    def leader(self, topic: Topic, partition: int) -> int:
        """The node that is advertised as the leader of a partition."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        return leader_of(topic.name, partition, self.settings.workers)

    def node_named(self, name: str) -> str:
        """The name of a broker resource. Raises KafkaError if there is no such broker."""
        if name not in {str(node) for node in self.nodes}:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}")
        return name
