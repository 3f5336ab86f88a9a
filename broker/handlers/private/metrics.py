"""METRICS: collects the metrics and tables of a worker (broker/metrics/document.py).

It works in slices, so that thousands of groups and partitions do not delay requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Protocol, TypeVar

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.errors import MoldauError
from moldau.broker.log.log import Log
from moldau.broker.log.logs import Logs
from moldau.broker.metrics.document import (
    ClientRow,
    CommittedRow,
    Document,
    Family,
    GroupRow,
    Kind,
    PartitionRow,
    Sample,
)
from moldau.broker.metrics.histogram import duration_family
from moldau.broker.metrics.log_counters import MAX_TOPICS
from moldau.broker.metrics.loop_lag import LoopLag
from moldau.broker.metrics.request_counters import RequestCounters
from moldau.broker.net.lease import Lease
from moldau.broker.server.connection import Connection
from moldau.broker.server.limits import Budget
from moldau.broker.store.store import Store
from moldau.broker.topics.topics import Topics

TURN_NS = 2_000_000  # how long a slice delays requests
# Logs that were not used since the start are loaded for their bounds, this many at a time.
LOADED_AT_A_TIME = 64
LOAD_PATIENCE_S = 0.5
MAX_PENDING_SERIES = 10_000

T = TypeVar("T")


class Telemetry(Protocol):
    """The metrics that clients pushed."""

    def rows(self) -> list[ClientRow]: ...

    def families(self) -> list[Family]: ...


class MetricsCollector:
    def __init__(
        self,
        worker: int,
        store: Store,
        topics: Topics,
        logs: Logs,
        groups: GroupCoordinator,
        connections: set[Connection],
        budget: Budget,
        requests: RequestCounters,
        loop_lag: LoopLag,
        access: Callable[[], list[Family]],
        telemetry: Telemetry | None = None,
    ) -> None:
        """`telemetry`: None if clients are not asked for metrics."""
        self._worker = worker
        self._store = store
        self._topics = topics
        self._logs = logs
        self._groups = groups
        self._connections = connections
        self._budget = budget
        self._requests = requests
        self._loop_lag = loop_lag
        self._access = access
        self._telemetry = telemetry
        self.lease: Lease | None = None  # None: no other broker can take over the store

    async def answer(self, _: None = None) -> Document:
        store = await self._store_families() if self._worker == 0 else []
        led = [log async for log in in_slices(self._led())]
        partitions = await self._partition_rows(led)
        return Document(
            is_ready=self._store.is_up and not (self.lease is not None and self.lease.is_over()),
            families=[
                *self._families(),
                *store,
                *_appended_families(led),
                await _pending_family(led),
            ],
            partitions=partitions,
            groups=await self._group_rows(),
            clients=self._telemetry.rows() if self._telemetry is not None else [],
        )

    def _families(self) -> list[Family]:
        pipes = self._store.connections()
        by_listener: dict[str, int] = {}
        paused: dict[str, int] = {}
        for connection in self._connections:
            listener = connection.identity.listener
            by_listener[listener] = by_listener.get(listener, 0) + 1
            if reason := connection.paused_for:
                paused[reason] = paused.get(reason, 0) + 1
        return [
            self._loop_lag.family(),
            Family("moldau_connections", Kind.GAUGE, "Open connections of clients.", ("listener",),
                   [Sample((name,), count) for name, count in by_listener.items() if name],
                   by_role=True),
            Family("moldau_connections_paused", Kind.GAUGE, "Connections not served for a while.",
                   ("reason",), [Sample((reason,), count) for reason, count in paused.items()]),
            *self._access(),
            Family("moldau_store_up", Kind.GAUGE, "Whether the worker is connected to the store.",
                   ("connection",),
                   [Sample((name,), float(pipe.is_up)) for name, pipe in pipes.items()]),
            Family("moldau_store_reconnects_total", Kind.COUNTER,
                   "Connections to the store that were lost and opened again.", ("connection",),
                   [Sample((name,), pipe.reconnects) for name, pipe in pipes.items()]),
            duration_family("moldau_store_command_duration_seconds",
                            "Round trips to the store, of commands sent while none was under way.",
                            ("connection",),
                            [pipe.round_trips.sample((name,)) for name, pipe in pipes.items()]),
            Family("moldau_inflight_bytes", Kind.GAUGE, "Bytes of unanswered requests.", (),
                   [Sample((), self._budget.used)]),
            Family("moldau_inflight_limit_bytes", Kind.GAUGE, "How many there may be.", (),
                   [Sample((), self._budget.total)]),
            *self._requests.families(),
            *self._logs.counters.families(self._logs.cache.size),
            *self._logs.read_ahead.families(),
            *self._groups.counters.families(),
            *(self._telemetry.families() if self._telemetry is not None else ()),
        ]  # fmt: skip

    async def _store_families(self) -> list[Family]:
        """Facts about the server. One worker reports them for all."""
        try:
            facts = await self._store.facts()
        except MoldauError:
            return []
        names = {
            "used_memory": ("moldau_store_memory_bytes", "Memory that the store uses."),
            "maxmemory": ("moldau_store_memory_limit_bytes", "Its limit; 0: none."),
            "aof_last_write_failed": (
                "moldau_store_last_write_failed",
                "1: it could not write its append-only file the last time it tried.",
            ),
            "aof_current_size": ("moldau_store_aof_bytes", "Its append-only file."),
            "aof_rewrite_in_progress": (
                "moldau_store_rewrite_in_progress",
                "Whether it rewrites its append-only file.",
            ),
            "aof_pending_bio_fsync": (
                "moldau_store_fsyncs_pending",
                "Syncs of its append-only file that wait.",
            ),
            "aof_delayed_fsync": (
                "moldau_store_fsyncs_delayed",
                "Syncs of its append-only file that came late, since it started.",
            ),
        }
        return [
            Family(names[fact][0], Kind.GAUGE, names[fact][1], (), [Sample((), value)])
            for fact, value in facts.items()
        ]

    # --- partitions ---

    def _led(self) -> Iterator[Log]:
        for topic in self._topics.all():
            for partition in range(topic.partitions):
                if self._logs.leads(topic.name, partition):
                    yield self._logs.log_for(topic, partition)

    async def _partition_rows(self, logs: Collection[Log]) -> list[PartitionRow]:
        unknown = [log for log in logs if not (log.is_loaded and log.is_watched)]
        with contextlib.suppress(TimeoutError):  # partitions that take longer are left out
            async with asyncio.timeout(LOAD_PATIENCE_S):
                for at in range(0, len(unknown), LOADED_AT_A_TIME):
                    some = unknown[at : at + LOADED_AT_A_TIME]
                    await asyncio.gather(*map(_load, some))
        found = [await self._row(log) async for log in in_slices(logs)]
        return [row for row in found if row is not None]

    async def _row(self, log: Log) -> PartitionRow | None:
        if not log.is_loaded or log.is_gone:
            return None
        try:
            size = await log.size_in_store()
            records, added = await log.counts()
        except MoldauError:
            return None
        return PartitionRow(
            log.topic,
            log.partition,
            log.start,
            log.end,
            size,
            self._worker,
            records,
            added,
            log.has_consecutive_offsets,
            log.epochs.gaps,
            tuple((epoch.number, epoch.start) for epoch in log.epochs.all),
        )

    # --- groups ---

    async def _group_rows(self) -> list[GroupRow]:
        groups = self._groups.groups
        rows = []
        async for group in in_slices(list(groups.by_id.values())):
            offsets = groups.offsets.get(group.group_id)
            committed = [
                CommittedRow(topic, partition, found.offset)
                for (topic, partition), found in offsets or ()
            ]
            rows.append(
                GroupRow(
                    group.group_id,
                    str(group.state),
                    group.size,
                    committed,
                    group.identity,
                    group.generation_id,
                )
            )
        return rows


def _appended_families(logs: Collection[Log]) -> list[Family]:
    """Totals of the partitions that this worker leads, including appends of other workers. The logs
    keep them, so the hot path counts nothing."""
    sizes: dict[str, int] = {}
    records: dict[str, int] = {}
    for log in logs:
        if log.is_loaded and (log.topic in sizes or len(sizes) < MAX_TOPICS):
            sizes[log.topic] = sizes.get(log.topic, 0) + log.bytes_known
            records[log.topic] = records.get(log.topic, 0) + log.records_known
    return [
        Family("moldau_topic_bytes_in_total", Kind.COUNTER, "Bytes appended.", ("topic",),
               [Sample((name,), size) for name, size in sizes.items()]),
        Family("moldau_topic_records_in_total", Kind.COUNTER, "Records appended.", ("topic",),
               [Sample((name,), count) for name, count in records.items() if count]),
    ]  # fmt: skip


async def _pending_family(logs: Collection[Log]) -> Family:
    pending: dict[tuple[str, str], int] = {}
    for log in logs:
        if log.has_consecutive_offsets or not log.is_loaded:
            continue
        with contextlib.suppress(MoldauError):  # deleted meanwhile, or the store is down
            for group, count in (await log.pending()).items():
                place = (log.topic, group)
                if place in pending or len(pending) < MAX_PENDING_SERIES:
                    pending[place] = pending.get(place, 0) + count
    return Family(
        "moldau_native_pending_entries",
        Kind.GAUGE,
        "Entries of native topics that were delivered to a group and are not committed.",
        ("topic", "consumergroup"),
        [Sample(place, count) for place, count in pending.items()],
    )


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and give other tasks a turn every two milliseconds."""
    until = time.perf_counter_ns() + TURN_NS
    for item in items:
        yield item
        if time.perf_counter_ns() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter_ns() + TURN_NS


async def _load(log: Log) -> None:
    with contextlib.suppress(MoldauError):  # deleted meanwhile, or the store is down
        await log.current()
