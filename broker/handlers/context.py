"""What handlers work with: one worker's logs, groups, topics and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from moldau.broker.access.acls import Acls
from moldau.broker.access.audit import Audit
from moldau.broker.access.connection_limiter import ConnectionLimiter
from moldau.broker.access.quotas import Quotas
from moldau.broker.access.tokens import Tokens
from moldau.broker.access.users import Users
from moldau.broker.coordinator.group_coordinator import GroupCoordinator
from moldau.broker.coordinator.group_settings import GroupSettings
from moldau.broker.coordinator.transaction_services import TransactionServices
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.client_telemetry import ClientTelemetry
from moldau.broker.handlers.deadlines import Deadlines
from moldau.broker.handlers.named_configs import ConfigChange, NamedConfigs, changed
from moldau.broker.log.logs import Logs
from moldau.broker.log_levels import LogLevels
from moldau.broker.metrics.access_counters import AccessCounters
from moldau.broker.placement import leader_of
from moldau.broker.security.authorizer import AllowEverything, Authorizer
from moldau.broker.security.quota_rates import Windows
from moldau.broker.settings.kafka import BrokerConfig, validate_broker, validate_group
from moldau.broker.settings.kafka.limits import connection_limits
from moldau.broker.settings.processes import Endpoint, WorkerSettings
from moldau.broker.store.store import Store
from moldau.broker.store.topics import Change
from moldau.broker.telemetry.subscriptions import read_subscription
from moldau.broker.topics.topics import Topic, Topics


class Parked(Protocol):
    """A request that waits for something to happen, and can be answered at any time."""

    def finish(self) -> None: ...


class Broker:
    def __init__(
        self,
        settings: WorkerSettings,
        store: Store,
        topics: Topics,
        logs: Logs,
        group_coordinator: GroupCoordinator,
        transactions: TransactionServices,
        cluster_id: str,
    ) -> None:
        self.settings = settings
        self.store = store
        self.topics = topics
        self.logs = logs
        self.group_coordinator = group_coordinator
        self.transactions = transactions.coordinator
        self.joins = transactions.joins
        self.local_markers = transactions.local_markers
        self.producer_ids = transactions.producer_ids
        self.cluster_id = cluster_id
        self.authorizer: Authorizer = AllowEverything()
        windows = _windows(topics.broker, "quota.window")
        mutation_windows = _windows(topics.broker, "controller.quota.window")
        self.quotas = Quotas(store.quotas, windows, mutation_windows)
        self.limiter = ConnectionLimiter(connection_limits(topics.broker), windows)
        self.users = Users(store.users, store.topics)
        self.tokens = Tokens(store.tokens, store.topics, topics.broker)
        self.acls: Acls | None = None  # None: there is no authorizer
        self.audit = Audit()
        self.log_levels = LogLevels()
        self.access = AccessCounters()
        self.loop_time = asyncio.get_running_loop().time
        self.deadlines = Deadlines()
        group_coordinator.on_stored = logs.group_assignments.stored
        group_coordinator.transactional.on_committed = logs.offsets_committed
        self.parked: set[Parked] = set()
        nodes = settings.listeners[0].brokers
        self.nodes = [node.node_id for node in nodes]
        self.group_settings = GroupSettings(store.topics)
        self.group_settings.on_loaded = self._use_group_settings
        self.telemetry: ClientTelemetry | None = None  # None: clients are not asked for metrics
        if topics.broker.get_bool("moldau.telemetry.enable"):
            self.telemetry = ClientTelemetry(store.topics, topics.broker)
        self.node_id = settings.index if len(nodes) > 1 else nodes[0].node_id
        self.on_config: Callable[[BrokerConfig], None] | None = None  # called when it has changed
        self.use_config(topics.broker)

    def use_config(self, config: BrokerConfig) -> None:
        """The broker's configuration changed: update topics and what requests look at."""
        self.topics.use_broker_config(config)
        self.group_coordinator.use_config(config, self.group_settings.by_id)
        self.transactions.use_config(config)
        self.limiter.counts.limits = connection_limits(config)
        self.fetch_max_bytes = config.get_int("fetch.max.bytes")
        self.auto_create = config.get_bool("auto.create.topics.enable")
        if self.on_config is not None:
            self.on_config(config)

    @property
    def config(self) -> BrokerConfig:
        return self.topics.broker

    def endpoints(self, listener: str) -> list[Endpoint]:
        """The brokers, as a client hears of them that came in through `listener`."""
        return self.settings.endpoints(listener)

    def leader(self, topic: Topic, partition: int) -> int:
        """The node that is advertised as a partition's leader."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        return leader_of(topic.name, partition, self.settings.workers)

    async def changes_applied(self) -> None:
        """Until all workers serve what this one changed: before the reply to a change."""
        await self.store.topics.unapplied.wait()

    # --- broker configuration ---

    def node_named(self, name: str) -> str:
        """A broker resource's name, if there is such a broker."""
        if name not in {str(node) for node in self.nodes}:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}")
        return name

    async def config_of(self, node: str) -> BrokerConfig:
        """What is in force on a broker; for "", what is set for all of them."""
        dynamic = await self.store.topics.broker_configs()
        return BrokerConfig(self.config.static, dynamic.get("", {}), dynamic.get(node, {}))

    async def load_config(self) -> None:
        self.use_config(await self.config_of(str(self.node_id)))

    # --- group configuration ---

    def _use_group_settings(self) -> None:
        self.group_coordinator.use_config(self.config, self.group_settings.by_id)

    async def alter_group_config(
        self, group_id: str, change: ConfigChange, *, validate_only: bool
    ) -> None:
        """Replace what is set for a group, which need not exist, by what `change` makes of it."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a group has a name")
        store = self.store.topics
        check = partial(validate_group, broker=self.config)
        configs = NamedConfigs(store.group_configs, store.set_group_config, check)
        if await configs.alter(group_id, change, validate_only=validate_only):
            await self.group_settings.load()
            await store.announce(Change("group", group_id))

    # --- subscriptions to clients' metrics ---

    async def alter_client_metrics_config(
        self, name: str, change: ConfigChange, *, validate_only: bool
    ) -> None:
        """Replace what is set for a subscription; set nothing, and it is gone."""
        if self.telemetry is None:
            text = "client metrics cannot be configured: moldau.telemetry.enable is false"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        store = self.store.topics
        configs = NamedConfigs(
            store.client_metrics_configs, store.set_client_metrics_config, read_subscription
        )
        if await configs.alter(name, change, validate_only=validate_only):
            await self.telemetry.load()
            await store.announce(Change("client-metrics", name))

    async def alter_broker_config(
        self, node: str, change: ConfigChange, *, validate_only: bool
    ) -> None:
        """Replace what is set for a broker ("" for all) by what `change` makes of it."""
        if node:
            self.node_named(node)
        while True:
            dynamic = await self.store.topics.broker_configs()
            old = dynamic.get(node)
            before = BrokerConfig(self.config.static, dynamic.get("", {}))
            new = changed(old, change, partial(validate_broker, broker=before))
            if validate_only:
                return
            if await self.store.topics.set_broker_config(node, old, new):
                break
        await self.load_config()
        await self.store.topics.announce(Change("config"))


def _windows(config: BrokerConfig, prefix: str) -> Windows:
    return Windows(config.get_int(f"{prefix}.num"), config.get_int(f"{prefix}.size.seconds") * 1000)
