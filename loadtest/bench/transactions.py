"""The transactions benchmark: the smallest transaction, a record in a partition, again and again.

In two forms: v1 adds the partition before it writes (Java before 4.0, librdkafka), v2 leaves that
to Produce and gets a new epoch at every end (Java 4, franz-go). Producers in parallel, each with a
transactional id of its own, begin the next transaction when the last one was answered. One alone,
beside a parked read_committed consumer, begins the next one when the consumer has the record. "end"
is EndTxn; "visible" counts from its response until the consumer has the record; "retries" are those
of requests that came while the transaction before was still ending. Baseline: the same batches of
an idempotent producer, without transactions.

Then the end of a log is fetched at both isolation levels: of a log without transactions, and of one
in which every second transaction was aborted. Baseline: read_uncommitted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import uvloop

from moldau.broker.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.fetch import FetchRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Row, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed
from moldau.loadtest.bench.harness.committed_reader import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    CommittedReader,
)
from moldau.loadtest.bench.harness.figures import Figures, summaries
from moldau.loadtest.bench.harness.measure import CpuMeter
from moldau.loadtest.bench.harness.replay import Totals, replaying, run_load
from moldau.loadtest.bench.harness.requests import (
    TOPIC_REQUESTS,
    RequestTypes,
    encode,
    fetch_request,
)
from moldau.loadtest.bench.harness.target import Target, broker_under_test, unserved
from moldau.loadtest.bench.harness.transactional import (
    PLAIN,
    V1,
    V2,
    Form,
    Producers,
    TransactionalProducer,
)
from moldau.loadtest.bench.harness.turns import Series
from moldau.loadtest.bench.latency import no_garbage_collection
from moldau.ops.client import error_name

RECORD_BYTES = 100
PATIENCE_S = 30.0  # beyond the time of a run, for what is still under way
LEVELS = {"uncommitted": READ_UNCOMMITTED, "committed": READ_COMMITTED}
# A log that is fetched, and how much of its end one response has.
LOG_BATCHES, FETCHED_BATCHES, LOG_BATCH_BYTES, FETCH_BYTES = 64, 8, 16_000, 1 << 16
ROLES = ("broker", "worker", "store", "client")
COLUMNS = (
    "each/s",
    *(f"{part}{figure}" for part in ("", "end ", "visible ") for figure in ("p50 ms", "p99 ms")),
    "retries each",
    *(f"{role} us each" for role in ROLES),
    "of baseline",
)

NEEDED: RequestTypes = [
    ProduceRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    *TOPIC_REQUESTS,
]


# --- producers ---


class Times(NamedTuple):
    """Times of each transaction in seconds; `ends` and `visible` where there are any."""

    whole: list[float]
    ends: list[float]
    visible: list[float]


class ProducerRun:
    """Producers of one form for some time: in parallel, or one alone beside a consumer."""

    def __init__(self, target: Target, form: Form, arguments: argparse.Namespace) -> None:
        self._target, self._form, self._arguments = target, form, arguments
        self._times = Times([], [], [])
        self._began = 0.0

    def measure(self, *, is_parallel: bool) -> Figures:
        partitions = self._arguments.partitions if is_parallel else 1
        with Producers(self._target, self._form, partitions, RECORD_BYTES).with_topic() as group:
            figures = uvloop.run(self._work(group, is_parallel))
            warm_up = self._arguments.connections if is_parallel else 1
            group.check(len(self._times.whole) + warm_up)
        return figures

    async def _work(self, group: Producers, is_parallel: bool) -> Figures:
        try:
            async with asyncio.timeout(self._arguments.seconds + PATIENCE_S):
                return await (self._parallel(group) if is_parallel else self._serial(group))
        finally:
            group.close()

    async def _parallel(self, group: Producers) -> Figures:
        producers = await group.start(self._arguments.connections)
        await asyncio.gather(*(one.transaction() for one in producers))  # logs are loaded
        with self._measured(producers) as figures:
            await asyncio.gather(*(self._produce(one) for one in producers))
        return figures

    async def _produce(self, producer: TransactionalProducer) -> None:
        while self._goes_on():
            await self._transaction(producer)

    async def _serial(self, group: Producers) -> Figures:
        (producer,) = await group.start(1)
        reader = CommittedReader(await group.connect(group.leaders[0]), group.topic)
        try:
            await reader.has(await producer.transaction())
            with no_garbage_collection(), self._measured([producer]) as figures:
                while self._goes_on():
                    visible_at = await reader.has(await self._transaction(producer))
                    self._times.visible.append(visible_at - producer.ended_at)
        finally:
            await reader.stop()
        return figures

    def _goes_on(self) -> bool:
        return time.perf_counter() - self._began < float(self._arguments.seconds)

    async def _transaction(self, producer: TransactionalProducer) -> int:
        started = time.perf_counter()
        offset = await producer.transaction()
        self._times.whole.append(producer.ended_at - started)
        if self._form.is_transactional:
            self._times.ends.append(producer.end_seconds)
        return offset

    @contextmanager
    def _measured(self, producers: Sequence[TransactionalProducer]) -> Iterator[Figures]:
        """The figures of what is done meanwhile, filled in at the end."""
        figures: Figures = {}
        retries = sum(one.retries for one in producers)
        meter = CpuMeter(self._target.pids)
        self._began = time.perf_counter()
        yield figures
        seconds, used = time.perf_counter() - self._began, meter.stop()
        count = len(self._times.whole)
        figures["each/s"] = count / seconds
        for name, values in zip(("", "end ", "visible "), self._times, strict=True):
            figures |= _percentiles(name, values)
        if self._form.is_transactional:
            retries = sum(one.retries for one in producers) - retries
            figures["retries each"] = retries / max(count, 1)
        figures |= _cpu(used, self._target, count)


def _percentiles(name: str, seconds: list[float]) -> Figures:
    if not seconds:
        return {}
    totals = Totals(len(seconds), 0, 1.0, sorted(seconds))
    return {
        f"{name}p50 ms": totals.percentile_ms(0.5),
        f"{name}p99 ms": totals.percentile_ms(0.99),
    }


def _cpu(used: dict[str, float], target: Target, count: int) -> Figures:
    return {
        f"{role} us each": used[role] / max(count, 1) * 1e6 if target.pids[role] else None
        for role in ROLES
    }


# --- a consumer ---


class FetchedLog:
    """A log whose end is fetched: without transactions, or with every second one aborted."""

    def __init__(self, target: Target, form: Form, arguments: argparse.Namespace) -> None:
        self._target, self._form, self._arguments = target, form, arguments
        self._group = Producers(target, form, 1, LOG_BATCH_BYTES)
        self._offset = 0

    @contextmanager
    def written(self) -> Iterator[FetchedLog]:
        with self._group.with_topic():
            offsets = uvloop.run(self._write())
            self._group.check(LOG_BATCHES)
            self._offset = offsets[-FETCHED_BATCHES]
            for level in LEVELS.values():
                self._check(level)
            yield self

    async def _write(self) -> list[int]:
        try:
            (producer,) = await self._group.start(1)
            commits = (bool(number % 2) for number in range(LOG_BATCHES))
            return [await producer.transaction(commit=commit) for commit in commits]
        finally:
            self._group.close()

    def _request(self, level: int) -> FetchRequest:
        return fetch_request(self._group.topic, 0, self._offset, FETCH_BYTES, isolation_level=level)

    def _check(self, level: int) -> None:
        """The response is as large as expected, and lists the aborted transactions in it."""
        with Client(self._group.leaders[0]) as client:
            answer = client.ask(self._request(level)).responses[0].partitions[0]
        size, listed = len(answer.records or b""), len(answer.aborted_transactions or ())
        expects_aborted = self._form.is_transactional and level == READ_COMMITTED
        if answer.error_code or size < FETCH_BYTES // 2 or bool(listed) != expects_aborted:
            text = f"{error_name(answer.error_code)}, {size} bytes, {listed} aborted transactions"
            raise RequestFailed(f"fetch at {self._offset}, isolation level {level}: {text}")

    def measure(self, level: int) -> Figures:
        arguments = self._arguments
        frame, address = encode(self._request(level)), self._group.leaders[0]
        connections = [replaying([frame], arguments.in_flight, address)] * arguments.connections
        meter = CpuMeter(self._target.pids)
        totals = uvloop.run(run_load(connections, arguments.seconds))
        used = meter.stop()
        figures: Figures = {"each/s": totals.per_second}
        figures |= _percentiles("", totals.latencies)
        return figures | _cpu(used, self._target, totals.requests)


# --- the table ---


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    series: Series = {}
    with broker_under_test(arguments, NEEDED) as target, ExitStack() as stack:
        forms = _forms(target)
        logs = {
            name: stack.enter_context(FetchedLog(target, form, arguments).written())
            for name, form in (("fetch", PLAIN), ("fetch, half aborted", V1))
        }
        for _ in range(arguments.repeat):
            for way, is_parallel in (("parallel", True), ("serial", False)):
                for form in forms:
                    figures = ProducerRun(target, form, arguments).measure(is_parallel=is_parallel)
                    series.setdefault(f"{form.name}, {way}", []).append(figures)
            for name, log in logs.items():
                for level_name, level in LEVELS.items():
                    series.setdefault(f"{name}, {level_name}", []).append(log.measure(level))
            advance()
    return _rows(series)


def _forms(target: Target) -> list[Form]:
    """The forms that the broker serves: Kafka before 4.0 has no v2."""
    versions: dict[type[Message], int] = {
        ProduceRequest: V2.produce_version,
        EndTxnRequest: V2.end_version,
    }
    with Client(target.address) as client:
        return [PLAIN, V1] if unserved(client, versions) else [PLAIN, V1, V2]


def _rows(series: Series) -> Rows:
    """All with the same columns; the first run of a kind is the baseline of those after it."""
    rows: Rows = []
    baseline = 0.0
    for name, turns in series.items():
        figures = summaries(turns)
        per_second = figures["each/s"]["median"]
        is_baseline = name.startswith(PLAIN.name) or name.endswith(" uncommitted")
        if is_baseline:
            baseline = per_second
        figures["of baseline"] = None if is_baseline else per_second / baseline
        rows.append({"run": name} | {column: figures.get(column) for column in COLUMNS})
    return rows


def _shown(row: Row) -> Row:
    """The row without columns that have no room in a table."""
    return {name: value for name, value in row.items() if name != "client us each"}


BENCHMARK = Benchmark(
    name="transactions",
    summary="transactions of one record, v1 and v2; fetches at both isolation levels",
    baseline="the same batches without transactions; read_uncommitted",
    run=_run,
    rounds=lambda arguments: int(arguments.repeat),
    shown=_shown,
)
