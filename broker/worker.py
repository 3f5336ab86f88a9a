"""One worker process: `python -m moldau.broker.worker`, started by the supervisor.

How it talks to the supervisor is in process.py. When the supervisor is gone the worker exits too.
SIGTERM drains: what is being served is answered before the worker exits.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from functools import partial
from pathlib import Path

from moldau.broker import descriptors
from moldau.broker.access.acls import Acls, configured_authorizer
from moldau.broker.access.audit import make_audit
from moldau.broker.access.kept import KeptByKind
from moldau.broker.access.logins import LoginServices
from moldau.broker.coordinator.group_coordinator import GroupCoordinator
from moldau.broker.coordinator.group_events import GroupEvents
from moldau.broker.coordinator.sights import Sights
from moldau.broker.coordinator.topics_seen import topics_seen
from moldau.broker.coordinator.transaction_services import TransactionServices
from moldau.broker.errors import StoreFault
from moldau.broker.frame_checks import FrameChecks
from moldau.broker.handlers.context import Broker
from moldau.broker.handlers.dispatch import Dispatcher
from moldau.broker.in_step import InStep
from moldau.broker.log.history import LogHistory
from moldau.broker.log.keeping.compaction import Compaction
from moldau.broker.log.keeping.maintenance import Maintenance
from moldau.broker.log.logs import Logs
from moldau.broker.log_levels import request_logger
from moldau.broker.loop_lag import LoopLag
from moldau.broker.metrics.access_counters import FAILURE, SUCCESS
from moldau.broker.metrics.document import METRICS, Family, encode
from moldau.broker.metrics.record_counts import RECORD_COUNTS
from moldau.broker.metrics.record_times import RECORD_TIMES
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.metrics.stream_views import STREAM_VIEWS
from moldau.broker.process import (
    BootFailure,
    Listening,
    collect_seldom,
    run,
    say_ready,
    watch_parent,
)
from moldau.broker.record_counts import RecordCounts
from moldau.broker.record_times import RecordTimes
from moldau.broker.report import WorkerReport
from moldau.broker.security.connection_limits import (
    CONNECTION_LIMITS,
    LimitsInForce,
    encode_limits,
)
from moldau.broker.security.identity import ENDED_SESSIONS, Identity, worker_identity
from moldau.broker.security.visible import VISIBLE
from moldau.broker.server.budget import Budget
from moldau.broker.server.connection import Connection
from moldau.broker.server.metering import ClientMetering
from moldau.broker.server.sessions import Sessions
from moldau.broker.server.subscribers import Subscribers
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.kafka.limits import connection_limits
from moldau.broker.settings.processes import Listener, WorkerSettings
from moldau.broker.settings.static import static_config
from moldau.broker.store.store import Store, StoreFiles, reached
from moldau.broker.store.topics import Change
from moldau.broker.stream_views import StreamViews
from moldau.broker.topics.topics import Topic, Topics
from moldau.broker.visible import Visibility

logger = logging.getLogger("moldau.worker")

DRAIN_SECONDS = 8.0
IDLE_CHECK_SECONDS = 60.0
OFFSETS_CHECK_SECONDS = 600.0


class Worker:
    """startup, main_loop, shutdown: the life of a worker."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._stop = asyncio.Event()
        self._connections: set[Connection] = set()
        self._listening = Listening()
        self._background: list[asyncio.Task[None]] = []
        self._kept = KeptByKind()
        self._requests = RequestCounters()
        self._metering: ClientMetering | None = None  # None: there is no quota for clients
        self._parent_gone = False

    # --- startup ---

    async def startup(self) -> None:
        settings = self.settings
        files = StoreFiles(*map(Path, settings.store_files)) if settings.store_files else None
        try:
            self.store = await reached(
                lambda: Store(settings.redis_url, settings.index, settings.workers, files)
            )
        except StoreFault as fault:
            raise BootFailure(f"the store cannot be reached: {fault}") from None
        await self.store.topics.check_format()
        changes_at = await self.store.topics.last_change()
        cluster_id = await self.store.topics.cluster_id()
        contents = await self.store.topics.contents_id()
        static = static_config(settings, self.store.label, descriptors.for_clients())
        self.history = LogHistory(
            self.store.history,
            self.store.log_history,
            self.store.confirmation,
            worker=settings.index,
            workers=settings.workers,
        )
        self.history.begin()
        self.topics = Topics(
            self.store.topics, self.store.streams, self.store.native, static, self.history
        )
        self.logs = Logs(
            self.store,
            self.topics,
            self.history,
            worker=settings.index,
            workers=settings.workers,
            cache_bytes=settings.tail_cache_bytes,
            snapshot_entries=settings.snapshot_entries,
        )
        self.group_coordinator = GroupCoordinator(
            self.store.groups,
            static,
            self.logs.spawn,
            worker=settings.index,
            workers=settings.workers,
            topics=topics_seen(self.topics),
        )
        self.topics.on_changed = self.group_coordinator.computing.topic_changed
        self.transactions = TransactionServices(
            settings, self.store, self.topics, self.logs, self.group_coordinator, static
        )
        self.topics.on_removed.append(self._topic_removed)
        self.broker = Broker(
            settings,
            self.store,
            self.topics,
            self.logs,
            self.group_coordinator,
            self.transactions,
            cluster_id,
        )
        self._authorize(static)
        self._kept.add("quota", self.broker.quotas)
        self._limits = Subscribers(CONNECTION_LIMITS)
        self.broker.quotas.on_changed = self._quotas_changed
        self.broker.on_config = self._tell_limits
        self._let_log_in()
        if settings.workers > 1:  # before anything is loaded: see store/unapplied.py
            await self.store.topics.announce(Change("worker", worker=settings.index))
        await self.broker.load_config()
        self._kept.add("group", self.broker.group_settings)
        if self.broker.telemetry is not None:
            self._kept.add("client-metrics", self.broker.telemetry)
        await self._kept.load()
        in_step = InStep(self.broker, self._kept, contents)
        await in_step.load_logs()
        if settings.index == 0:
            await self.topics.finish_deletions()
        self._watcher = in_step.follow(changes_at)
        self._loop_lag = LoopLag()
        self._budget = Budget(settings.inflight_bytes, settings.connection_inflight_bytes)
        self._frame_checks = FrameChecks(self._budget.frames)
        report = WorkerReport(
            settings.index,
            self.store,
            self.topics,
            self.logs,
            self.group_coordinator,
            self._connections,
            self._budget,
            self._requests,
            self._loop_lag,
            self._access_families,
            self.broker.telemetry,
        )

        async def metrics(_: bytes) -> bytes:
            return encode(await report.document())

        subscriptions = {
            ENDED_SESSIONS: self._sessions.routers.subscribe,
            CONNECTION_LIMITS: self._limits.subscribe,
        }
        private = {
            METRICS: metrics,
            RECORD_TIMES: RecordTimes(self.topics, self.logs).answer,
            RECORD_COUNTS: RecordCounts(self.topics, self.logs).answer,
            STREAM_VIEWS: StreamViews(self.store.native_views).answer,
            VISIBLE: Visibility(self.broker, self._logins.by_listener).answer,
        }
        self._dispatcher = Dispatcher(self.broker, private, subscriptions)
        self.broker.log_levels.on_changed = self._log_levels_changed
        await self._listen()
        compaction = Compaction(self.store.streams, self.store.cleaned, self.logs.retention)
        maintenance = Maintenance(self.topics, self.logs, compaction)
        self._background = [
            asyncio.ensure_future(maintenance.run()),
            asyncio.ensure_future(self._keep_groups()),
            asyncio.ensure_future(in_step.watch_contents()),
            asyncio.ensure_future(self.store.watch_history()),
            asyncio.ensure_future(self._close_idle()),
            asyncio.ensure_future(self._watch_parent()),
        ]
        self._group_events: GroupEvents | None = None
        if static.get_bool("moldau.group.events.enable"):
            events = GroupEvents(self.group_coordinator, self.topics, self.logs, settings.index)
            self._group_events = events
            self._background.append(asyncio.ensure_future(events.run()))
        self._background += [asyncio.ensure_future(keys.run()) for keys in self._logins.key_sets]
        if self.broker.tokens.is_enabled:
            self._background.append(asyncio.ensure_future(self.broker.tokens.run()))
            if settings.index == 0:
                self._background.append(asyncio.ensure_future(self.broker.tokens.run_sweeps()))
        if self.broker.audit.is_enabled:
            self._background.append(asyncio.ensure_future(self.broker.audit.run()))

    def _authorize(self, static: BrokerConfig) -> None:
        settings, store = self.settings, self.store
        uses_sasl = any(each.listener.uses_sasl for each in settings.listeners)
        self.broker.audit = make_audit(
            static, self.topics, self.logs, settings.index, uses_sasl=uses_sasl
        )
        authorizer = configured_authorizer(static)
        if authorizer is not None:
            self.broker.authorizer = authorizer
            self.group_coordinator.computing.sights = Sights()
            self.broker.acls = Acls(store.acls, store.topics, authorizer, self._forget_routes)
            self._kept.add("acl", self.broker.acls)

    def _let_log_in(self) -> None:
        listeners = (each.listener for each in self.settings.listeners)
        users, tokens, audit = self.broker.users, self.broker.tokens, self.broker.audit
        has_telemetry = self.broker.telemetry is not None
        self._logins = LoginServices(listeners, users, tokens, has_telemetry=has_telemetry)
        self._logins.on_events(audit.login, audit.login_failed)
        self._logins.on_events(self._count_login, self._count_failed_login)
        self._sessions = Sessions(self._connections)
        users.on_changed.append(self._sessions.users_changed)
        tokens.on_ended.append(self._sessions.tokens_ended)
        tokens.on_removed = partial(audit.token_expired, worker_identity(self.settings.index))
        self._kept.add("user", users)
        self._kept.add("token", tokens)

    def _count_login(self, identity: Identity, mechanism: str) -> None:
        self.broker.access.login(mechanism, SUCCESS)

    def _count_failed_login(self, host: str, mechanism: str, user: str, reason: str) -> None:
        self.broker.access.login(mechanism, FAILURE)

    def _forget_routes(self) -> None:
        """See `RequestRoute`: what clients may do has changed, or every request is logged."""
        for connection in self._connections:
            connection.forget_routes()

    def _connection(self, listener: Listener | None) -> Connection:
        most, counters = self.settings.max_request_bytes, self._requests
        made = Connection(
            self._dispatcher, self._budget, self._connections, most, listener, counters
        )
        made.logins = self._logins.by_listener
        made.metering = self._metering
        made.limiter = self.broker.limiter
        return made

    def _access_families(self) -> list[Family]:
        broker, listening = self.broker, self._listening
        return [
            *broker.limiter.counters.families(
                listening.failed_handshakes, listening.certificate_expiries
            ),
            *broker.access.families(broker.quotas.usages.throttled_ms),
        ]

    async def _listen(self) -> None:
        limiter = self.broker.limiter
        limiter.counts.most = descriptors.for_clients()
        await self._listening.begin(
            self.settings,
            self._connection,
            refuses=limiter.refuses,
            on_refused=limiter.no_descriptor,
        )

    # --- changes ---

    def _quotas_changed(self) -> None:
        quotas = self.broker.quotas
        self._tell_limits(self.broker.config)
        self._metering = ClientMetering(quotas.usages) if quotas.table.limits_clients else None
        for connection in self._connections:
            connection.metering = self._metering

    def _tell_limits(self, config: BrokerConfig) -> None:
        """Those of connections, which routers have too: but for what is set for this worker."""
        rates = self.broker.quotas.table.connection_rates
        self.broker.limiter.counts.use(LimitsInForce(connection_limits(config), rates))
        common = connection_limits(BrokerConfig(config.static, config.dynamic_default))
        self._limits.keep(encode_limits(LimitsInForce(common, rates)))

    def _log_levels_changed(self) -> None:
        self._dispatcher.logs_requests = request_logger.isEnabledFor(logging.DEBUG)
        if self._dispatcher.logs_requests:
            self._forget_routes()

    # --- main loop ---

    async def main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        say_ready()
        self._loop_lag.start()
        logger.info("worker %d serves on port %d", self.settings.index, self.settings.port)
        collect_seldom()
        await self._stop.wait()

    async def _watch_parent(self) -> None:
        """Standard input ends when the supervisor does."""
        ended = asyncio.Event()
        watch_parent(ended.set)
        await ended.wait()
        logger.error("the supervisor is gone, exiting")
        self._parent_gone = True
        self._stop.set()

    def _topic_removed(self, topic: Topic) -> None:
        self.logs.spawn(self._forget_offsets(topic.name))

    async def _forget_offsets(self, topic: str) -> None:
        try:
            await self.group_coordinator.topic_deleted(topic)
        except StoreFault as fault:
            logger.warning("offsets of the deleted topic %s wait for the store: %s", topic, fault)

    async def _keep_groups(self) -> None:
        """Load this worker's groups and transactional ids, then expire offsets and ids. Topics
        whose deletion a crash interrupted are found too."""
        await self.group_coordinator.load()
        while True:
            try:
                for topic in self.group_coordinator.topics() - {
                    known.name for known in self.topics.all()
                }:
                    if await self.topics.find(topic) is None:
                        await self.group_coordinator.topic_deleted(topic)
                await self.group_coordinator.expire()
                self.transactions.coordinator.expire()
            except StoreFault as fault:
                logger.warning("expiry of offsets waits for the store: %s", fault)
            await asyncio.sleep(OFFSETS_CHECK_SECONDS)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_SECONDS)
            idle_ms = self.broker.config.get_int("connections.max.idle.ms")
            if idle_ms < 0:
                continue
            before = asyncio.get_running_loop().time() - idle_ms / 1000
            for connection in list(self._connections):
                if connection.is_idle and connection.last_active < before:
                    connection.close_idle()

    # --- shutdown ---

    async def shutdown(self) -> None:
        """No new connection, parked requests answered, appends finished."""
        self._loop_lag.stop()
        self._listening.close()
        for task in self._background:
            task.cancel()
        for parked in list(self.broker.parked):
            parked.finish()
        if self._group_events is not None:
            self._group_events.note_commits()
        if not self._parent_gone:
            await self.group_coordinator.written(DRAIN_SECONDS / 4)
        self.group_coordinator.give_up()
        if self._group_events is not None and not self._parent_gone:
            await self._group_events.close(DRAIN_SECONDS / 8)
        if not self._parent_gone:
            await self.broker.audit.close(DRAIN_SECONDS / 8)
        for connection in list(self._connections):
            connection.drain()
        await self.logs.close(1.0 if self._parent_gone else DRAIN_SECONDS / 2)
        await self._connections_closed(DRAIN_SECONDS / 4)
        await self.transactions.close_slots()
        self.transactions.close()
        self._logins.close()
        self.broker.tokens.close()
        await self._watcher.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.store.close()

    async def _connections_closed(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._connections and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()


if __name__ == "__main__":
    run("worker", WorkerSettings, Worker)
