"""Builds the objects of a worker, and makes every connection between them that is not an argument.

`assemble` builds from the bottom up: store, logs, coordinators, access, handlers, connections. An
object that has to call one built after it has a slot for the call (`on_...`); `_connect` fills all
of them. Nothing here awaits: what has to be read from the store is read by `Worker.startup`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from moldau.broker.access.acls import Acls, configured_authorizer
from moldau.broker.access.audit import make_audit
from moldau.broker.access.cached_tables import CachedTables
from moldau.broker.access.connection_limiter import ConnectionLimiter
from moldau.broker.access.logins import LoginServices
from moldau.broker.access.quotas import Quotas
from moldau.broker.access.tokens import Tokens
from moldau.broker.access.users import Users
from moldau.broker.broker import Broker
from moldau.broker.change_feed import ChangeFeed
from moldau.broker.coordinator.client_telemetry import ClientTelemetry
from moldau.broker.coordinator.groups.assignment_jobs import RegexVisibility
from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.groups.events import GroupEvents
from moldau.broker.coordinator.groups.settings import GroupSettings
from moldau.broker.coordinator.transactions.coordinator import REPLICATED_WITHIN_S
from moldau.broker.coordinator.transactions.services import TransactionServices
from moldau.broker.coordinator.upkeep import GroupUpkeep
from moldau.broker.dispatch import Dispatcher
from moldau.broker.group.topics import TopicFacts, TopicLookup
from moldau.broker.handlers.private.acl_origins import AclOrigins
from moldau.broker.handlers.private.connection_limits import ConnectionLimitsFeed
from moldau.broker.handlers.private.ended_sessions import SessionEnder
from moldau.broker.handlers.private.lease import LeaseKeeper
from moldau.broker.handlers.private.metrics import MetricsCollector
from moldau.broker.handlers.private.record_counts import RecordCounts
from moldau.broker.handlers.private.record_times import RecordTimes
from moldau.broker.handlers.private.stream_views import StreamViews
from moldau.broker.handlers.private.visible_names import Visibility
from moldau.broker.log.keeping.compaction import Compaction
from moldau.broker.log.keeping.maintenance import Maintenance
from moldau.broker.log.logs import Logs
from moldau.broker.logging_setup import LogLevels
from moldau.broker.metrics.access_counters import FAILURE, SUCCESS
from moldau.broker.metrics.document import Family
from moldau.broker.metrics.loop_lag import LoopLag
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.net.frame_checks import FrameChecks
from moldau.broker.net.lease import Lease
from moldau.broker.private.table import (
    ACL_ORIGINS,
    CONNECTION_LIMITS,
    ENDED_SESSIONS,
    LEASE,
    METRICS,
    RECORD_COUNTS,
    RECORD_TIMES,
    STREAM_VIEWS,
    VISIBLE_NAMES,
)
from moldau.broker.process import Listening
from moldau.broker.security.authorizer import AllowEverything
from moldau.broker.security.identity import worker_identity
from moldau.broker.security.quota_rates import Windows
from moldau.broker.server.connections import Connections
from moldau.broker.server.limits import Budget
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import WorkerSettings
from moldau.broker.settings.static_config import connection_limits
from moldau.broker.store.store import Store
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.log_integrity import LogIntegrity
from moldau.broker.topics.topics import Topic, Topics


@dataclass
class Parts:
    """The objects of a worker, beside those that `broker` has."""

    broker: Broker
    group_events: GroupEvents | None  # None: they are turned off
    upkeep: GroupUpkeep
    transactions: TransactionServices
    tables: CachedTables
    change_feed: ChangeFeed
    logins: LoginServices
    sessions: SessionEnder
    limits: ConnectionLimitsFeed
    dispatcher: Dispatcher
    budget: Budget
    frame_checks: FrameChecks
    connections: Connections
    lease: LeaseKeeper | None  # None: the store is this broker's own
    listening: Listening
    loop_lag: LoopLag


def assemble(
    settings: WorkerSettings, store: Store, static: BrokerConfig, cluster_id: str, contents: str
) -> Parts:
    """`static`: the configuration of the process. `contents`: the identity of the data set."""
    worker, workers = settings.index, settings.workers

    # --- logs ---
    integrity = LogIntegrity(
        store.identity, store.log_integrity, store.confirmation, worker=worker, workers=workers
    )
    integrity.begin()
    topics = Topics(store.topics, store.streams, store.native, static, integrity)
    logs = Logs(
        store,
        topics,
        integrity,
        worker=worker,
        workers=workers,
        cache_bytes=settings.tail_cache_bytes,
        snapshot_entries=settings.snapshot_entries,
    )

    # --- coordinators ---
    groups = GroupCoordinator(
        store.groups,
        static,
        logs.spawn,
        worker=worker,
        workers=workers,
        topics=_topics_seen(topics),
    )
    transactions = TransactionServices(settings, store, topics, logs, groups, static)
    upkeep = GroupUpkeep(groups, transactions.coordinator, topics, logs.spawn)
    events = None
    if static.get_bool("moldau.group.events.enable"):
        events = GroupEvents(groups, topics, logs, worker)
    telemetry = None
    if static.get_bool("moldau.telemetry.enable"):
        telemetry = ClientTelemetry(store.topics, static)

    # --- access ---
    windows = _windows(static, "quota.window")
    authorizer = configured_authorizer(static)
    users = Users(store.users, store.topics)
    tokens = Tokens(store.tokens, store.topics, static)
    listeners = [each.listener for each in settings.listeners]
    uses_sasl = any(listener.uses_sasl for listener in listeners)
    limiter = ConnectionLimiter(connection_limits(static), windows)
    logins = LoginServices(listeners, users, tokens, has_telemetry=telemetry is not None)

    broker = Broker(
        settings=settings,
        store=store,
        topics=topics,
        logs=logs,
        group_coordinator=groups,
        group_settings=GroupSettings(store.topics),
        transactions=transactions.coordinator,
        enlistment=transactions.enlistment,
        local_markers=transactions.local_markers,
        producer_ids=transactions.producer_ids,
        cluster_id=cluster_id,
        authorizer=authorizer or AllowEverything(),
        acls=None if authorizer is None else Acls(store.acls, store.topics, authorizer),
        audit=make_audit(static, topics, logs, worker, uses_sasl=uses_sasl),
        users=users,
        tokens=tokens,
        quotas=Quotas(store.quotas, windows, _windows(static, "controller.quota.window")),
        limiter=limiter,
        telemetry=telemetry,
        log_levels=LogLevels(),
    )
    tables = CachedTables(
        {
            "acl": broker.acls,
            "quota": broker.quotas,
            "user": users,
            "token": tokens,
            "group": broker.group_settings,
            "client-metrics": telemetry,
        }
    )

    # --- connections ---
    requests = RequestCounters()
    budget = Budget(settings.inflight_bytes, settings.connection_inflight_bytes)
    dispatcher = Dispatcher(broker)
    lease = None if settings.lease is None else Lease(settings.lease.lease_ms)
    connections = Connections(
        dispatcher, budget, settings.max_request_bytes, requests, logins.by_listener, limiter, lease
    )
    listening = Listening()
    loop_lag = LoopLag()

    # --- private requests ---
    def access_families() -> list[Family]:
        handshakes, expiries = listening.failed_handshakes, listening.certificate_expiries
        return [
            *limiter.counters.families(handshakes, expiries),
            *broker.access.families(broker.quotas.usages.throttled_ms),
        ]

    collector = MetricsCollector(
        worker, store, topics, logs, groups, connections.open, budget, requests, loop_lag,
        access_families, telemetry,
    )  # fmt: skip
    sessions = SessionEnder(connections.open)
    limits = ConnectionLimitsFeed(limiter, broker.quotas)
    keeper = None
    if settings.lease is not None and lease is not None:
        keeper = LeaseKeeper(settings.lease, lease, store.control, connections)
        collector.lease = lease
    dispatcher.private = dict(
        (
            METRICS.served_by(collector.answer),
            RECORD_TIMES.served_by(RecordTimes(topics, logs).answer),
            RECORD_COUNTS.served_by(RecordCounts(topics, logs).answer),
            STREAM_VIEWS.served_by(StreamViews(store.native_views).answer),
            VISIBLE_NAMES.served_by(Visibility(broker, logins.by_listener).answer),
            ACL_ORIGINS.served_by(AclOrigins(store.acls).answer),
        )
    )
    dispatcher.subscriptions = {
        ENDED_SESSIONS.key: sessions.routers.subscribe,
        CONNECTION_LIMITS.key: limits.routers.subscribe,
    }
    if keeper is not None:
        dispatcher.subscriptions[LEASE.key] = keeper.routers.subscribe

    parts = Parts(
        broker=broker,
        group_events=events,
        upkeep=upkeep,
        transactions=transactions,
        tables=tables,
        change_feed=ChangeFeed(broker, tables, contents),
        logins=logins,
        sessions=sessions,
        limits=limits,
        dispatcher=dispatcher,
        budget=budget,
        frame_checks=FrameChecks(budget.frames),
        connections=connections,
        lease=keeper,
        listening=listening,
        loop_lag=loop_lag,
    )
    _connect(parts)
    broker.use_config(static)
    return parts


def _connect(parts: Parts) -> None:
    """Who calls whom when something happens."""
    broker, connections, sessions = parts.broker, parts.connections, parts.sessions
    store, topics, logs = broker.store, broker.topics, broker.logs
    groups, transactions = broker.group_coordinator, parts.transactions
    audit, users, tokens = broker.audit, broker.users, broker.tokens

    # A topic changes, or is deleted: groups compute assignments again, and forget its offsets.
    topics.on_changed = groups.jobs.topic_changed
    topics.on_removed.append(parts.upkeep.topic_removed)

    # A group is stored, or commits offsets: logs of native topics follow its members.
    groups.on_stored = logs.group_assignments.stored
    groups.transactional.on_committed = logs.offsets_committed
    groups.transactional.when_replicated = partial(store.replication.within, REPLICATED_WITHIN_S)
    if parts.group_events is not None:
        groups.on_changed = parts.group_events.changed
        groups.offsets.on_moving = parts.group_events.note_offsets_before
        groups.offsets.commit_counts = {}

    # Batches of transactions enlist their partitions; transactions without an owner are ended.
    logs.enlistment = transactions.enlistment
    logs.hanging_transactions = transactions.hanging_transactions

    # Access changes: what connections remember of their clients' rights is forgotten.
    if broker.acls is not None:
        broker.acls.on_changed = connections.forget_routes
        groups.jobs.visibility = RegexVisibility()
    users.on_changed.append(sessions.users_changed)
    tokens.on_ended.append(sessions.tokens_ended)
    tokens.on_removed = partial(audit.token_expired, worker_identity(broker.settings.index))
    count_login = broker.access.login
    parts.logins.on_events(audit.login, audit.login_failed)
    parts.logins.on_events(
        lambda identity, mechanism: count_login(mechanism, SUCCESS),
        lambda host, mechanism, user, reason: count_login(mechanism, FAILURE),
    )

    # Configuration changes.
    def quotas_changed() -> None:
        quotas = broker.quotas
        parts.limits.use(broker.config)
        connections.use_quotas(quotas.usages if quotas.table.limits_clients else None)

    def log_levels_changed() -> None:
        if parts.dispatcher.use_log_levels():
            connections.forget_routes()

    broker.quotas.on_changed = quotas_changed
    broker.on_config = parts.limits.use
    broker.group_settings.on_loaded = broker.use_group_settings
    broker.log_levels.on_changed = log_levels_changed


def follow_changes(parts: Parts, changes_at: bytes) -> Watcher:
    """Apply what other workers announce, from behind `changes_at`: the last change when loading
    began."""
    broker, feed = parts.broker, parts.change_feed
    store, logs = broker.store, broker.logs
    store.identity.on_changed = feed.store_changed
    logs.watcher = Watcher(
        store.blocking,
        store.control,
        broker.settings.index,
        on_change=feed.changed,
        on_wake=logs.woken,
        on_applied=store.topics.change_acks.acknowledged,
        on_entries=logs.received,
        on_native=logs.received,
        on_reset=feed.missed_changes,
    )
    logs.watcher.start(changes_at)
    return logs.watcher


def background(parts: Parts) -> list[Coroutine[Any, Any, None]]:
    """What runs from the start of a worker to its end."""
    broker = parts.broker
    store, logs = broker.store, broker.logs
    compaction = Compaction(store.streams, store.cleaned, logs.retention)
    found = [
        Maintenance(broker.topics, logs, compaction).run(),
        parts.upkeep.run(),
        parts.change_feed.watch_contents(),
        store.watch_identity(),
        parts.connections.close_idle(lambda: broker.config.get_int("connections.max.idle.ms")),
        *(keys.run() for keys in parts.logins.key_sets),
    ]
    if parts.group_events is not None:
        found.append(parts.group_events.run())
    if broker.tokens.is_enabled:
        found.append(broker.tokens.run())
        if broker.settings.index == 0:
            found.append(broker.tokens.run_sweeps())
    if broker.audit.is_enabled:
        found.append(broker.audit.run())
    if parts.lease is not None:
        found.append(parts.lease.run())
    return found


def _topics_seen(topics: Topics) -> TopicLookup:
    """Topics as the state machine of groups sees them."""

    def facts(topic: Topic | None) -> TopicFacts | None:
        return None if topic is None else TopicFacts(topic.name, topic.topic_id, topic.partitions)

    return TopicLookup(
        lambda name: facts(topics.get(name)),
        lambda topic_id: facts(topics.by_id(topic_id)),
        lambda: [topic.name for topic in topics.all()],
    )


def _windows(config: BrokerConfig, prefix: str) -> Windows:
    return Windows(config.get_int(f"{prefix}.num"), config.get_int(f"{prefix}.size.seconds") * 1000)
