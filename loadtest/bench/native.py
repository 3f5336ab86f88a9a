"""The native benchmark: topics with an entry per record, written and read by both sides.

Baselines are what a Redis application does with the same records on the same store: XADD of the
same fields, as many in a pipeline as a batch has records, and XREADGROUP with a COUNT of as many
records as the broker's own replies have. What was written is then read: all figures are about the
same data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

import redis
import uvloop

from moldau.broker.errors import ErrorCode
from moldau.broker.store.pipe import command
from moldau.broker.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.broker.wire.records import Record, build_batch
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Row, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed, check_error
from moldau.loadtest.bench.harness.figures import Figure
from moldau.loadtest.bench.harness.measure import CpuMeter
from moldau.loadtest.bench.harness.native_clients import GroupFetcher, GroupReader, PipelinedXadd
from moldau.loadtest.bench.harness.replay import (
    Connect,
    Connection,
    CountedReplayer,
    Replayer,
    Totals,
    run_load,
)
from moldau.loadtest.bench.harness.target import Target, TargetError, broker_under_test
from moldau.loadtest.bench.produce import produce_frame, store_address
from moldau.ops.client.consumer_protocol import assignment, subscription

SIZES = [100, 1024]
BATCH_RECORDS = 200
MAX_RECORDS, MAX_BYTES = 120_000, 48 << 20  # of a run
KEY = b"key-00000042"
RAW_XADD, PRODUCE, RAW_READ, FETCH = "raw XADD", "produce", "raw XREADGROUP", "group fetch"
BASELINES = {PRODUCE: RAW_XADD, FETCH: RAW_READ}
ROLES = ("worker", "store", "client")

SESSION_MS = 300_000  # the member sends no heartbeats


class Run(NamedTuple):
    records: int
    totals: Totals
    cpu: dict[str, float]


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    rows: Rows = []
    with broker_under_test(arguments) as target:
        if target.store_url is None:
            raise TargetError("native topics are measured against their store: only on its machine")
        for size in arguments.size or SIZES:
            series: dict[str, list[Run]] = {}
            for _ in range(arguments.repeat):
                with NativeRound(target, target.store_url, arguments, size) as one:
                    for name, run in one.runs():
                        series.setdefault(name, []).append(run)
                advance()
            rows += _rows(size, series)
    return rows


def _rows(size: int, series: dict[str, list[Run]]) -> Rows:
    rates = {
        name: Figure([run.records / run.totals.seconds for run in runs])
        for name, runs in series.items()
    }
    rows = []
    for name, runs in series.items():
        row: Row = {"size": size, "run": name, "records/s": rates[name].to_json()}
        row["MB/s"] = Figure([value * size / 1e6 for value in rates[name].values]).to_json()
        row["p50 ms"] = Figure([run.totals.percentile_ms(0.5) for run in runs]).to_json()
        for role in ROLES:
            used = [run.cpu[role] / run.records * 1e6 for run in runs]
            row[f"{role} us/record"] = Figure(used).to_json()
        baseline = BASELINES.get(name)
        row["of baseline"] = rates[name].median / rates[baseline].median if baseline else None
        rows.append(row)
    return rows


class NativeRound:
    """Each of the four runs once; with a topic and streams of its own, deleted afterwards."""

    def __init__(
        self, target: Target, store_url: str, arguments: argparse.Namespace, size: int
    ) -> None:
        self._target = target
        self._store_url = store_url
        self._arguments = arguments
        self._partitions = arguments.partitions
        self._value = bytes(size)
        wanted = max(min(MAX_RECORDS, MAX_BYTES // size) // self._partitions, BATCH_RECORDS)
        self._batches = wanted // BATCH_RECORDS  # of a partition
        self._now = time.time_ns() // 1_000_000
        self._clients: list[Replayer] = []  # of the last run
        self._acknowledged = 0  # records of the last run

    def __enter__(self) -> NativeRound:
        with ExitStack() as stack:
            self._store = stack.enter_context(redis.Redis.from_url(self._store_url))
            self._admin = stack.enter_context(Client(self._target.address))
            native = {"moldau.storage": "native"}
            self._topic = stack.enter_context(self._admin.temporary_topic(self._partitions, native))
            self._client_id = f"{self._topic}-member"
            self._leaders = self._admin.leaders(self._topic)
            stack.callback(self._delete_raw)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _delete_raw(self) -> None:
        self._store.delete(*self._raw_keys())

    def _raw_keys(self) -> list[bytes]:
        return [f"bench:{self._topic}:{number}".encode() for number in range(self._partitions)]

    def runs(self) -> Iterator[tuple[str, Run]]:
        yield RAW_XADD, self._measure([self._raw_writer(key) for key in self._raw_keys()])
        yield PRODUCE, self._measure([self._producer(n) for n in range(self._partitions)])
        written = [self._length(f"moldau:{self._topic}:{n}") for n in range(self._partitions)]
        if sum(written) != self._acknowledged:
            raise RequestFailed(
                f"{self._acknowledged} records acknowledged, {sum(written)} in the streams"
            )
        member_id = self._join()
        fetched = self._measure([self._fetcher(n, count) for n, count in enumerate(written)])
        fetchers = [client for client in self._clients if isinstance(client, GroupFetcher)]
        self._check_pending([client.records for client in fetchers])
        self._leave(member_id)
        count = max(client.max_records for client in fetchers)
        yield RAW_READ, self._measure([self._raw_reader(key, count) for key in self._raw_keys()])
        yield FETCH, fetched

    def _measure(self, connections: Sequence[Connection]) -> Run:
        self._clients = []
        kept = [(self._keeping(make), address) for make, address in connections]
        meter = CpuMeter(self._target.pids)
        totals = uvloop.run(run_load(kept, self._arguments.seconds))
        used = meter.stop()
        records = sum(
            client.records
            if isinstance(client, GroupFetcher | GroupReader)
            else client.requests * BATCH_RECORDS
            for client in self._clients
        )
        self._acknowledged = records
        return Run(records, totals, {role: used[role] for role in ROLES})

    def _keeping(self, make: Connect) -> Connect:
        def make_and_keep() -> Replayer:
            client = make()
            self._clients.append(client)
            return client

        return make_and_keep

    def _length(self, key: str | bytes) -> int:
        return int(cast("int", self._store.xlen(key)))

    # --- writing ---

    def _raw_writer(self, key: bytes) -> Connection:
        fields = (b"key", KEY, b"value", self._value, b"timestamp", b"%d" % self._now)
        pipeline = command("XADD", key, "*", *fields) * BATCH_RECORDS
        in_flight = self._arguments.in_flight
        make = partial(PipelinedXadd, pipeline, BATCH_RECORDS, in_flight, self._batches)
        return make, store_address(self._store_url)

    def _producer(self, partition: int) -> Connection:
        records = [Record(n, self._now, KEY, self._value) for n in range(BATCH_RECORDS)]
        batch = bytes(build_batch(records, base_offset=0, last_offset=BATCH_RECORDS - 1))
        frame = produce_frame(self._topic, partition, batch)
        in_flight, batches = self._arguments.in_flight, self._batches
        return lambda: CountedReplayer(frame, in_flight, batches), self._leaders[partition]

    # --- reading ---

    def _fetcher(self, partition: int, records: int) -> Connection:
        make = partial(GroupFetcher, self._client_id, self._topic, partition, records)
        return make, self._leaders[partition]

    def _raw_reader(self, key: bytes, count: int) -> Connection:
        self._store.xgroup_create(key, "bench", "0")
        words = ("XREADGROUP", "GROUP", "bench", "reader", "COUNT", count, "STREAMS", key, ">")
        make = partial(GroupReader, command(*words), count, self._length(key))
        return make, store_address(self._store_url)

    def _check_pending(self, fetched: list[int]) -> None:
        """Check that what the group has read is pending in Redis."""
        for number, count in enumerate(fetched):
            key = f"moldau:{self._topic}:{number}"
            found = cast("dict[str, Any]", self._store.xpending(key, self._topic))
            if found["pending"] != count:
                raise RequestFailed(f"{key}: {found['pending']} of {count} records are pending")

    # --- the group ---

    def _join(self) -> str:
        """The only member of a group, with all partitions of the topic."""
        with Client(self._target.address, self._client_id) as client:
            member_id: str = ""
            protocols = [JoinGroupRequestProtocol("range", subscription(self._topic))]
            while True:
                request = JoinGroupRequest(
                    self._topic, SESSION_MS, SESSION_MS, member_id, None, "consumer", protocols
                )
                joined = client.ask(request)
                member_id = joined.member_id
                if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    break
            check_error("JoinGroup", joined.error_code)
            assigned = assignment(self._topic, range(self._partitions))
            sync = SyncGroupRequest(
                self._topic,
                joined.generation_id,
                member_id,
                None,
                "consumer",
                "range",
                [SyncGroupRequestAssignment(member_id, assigned)],
            )
            check_error("SyncGroup", client.ask(sync).error_code)
            return member_id

    def _leave(self, member_id: str) -> None:
        request = LeaveGroupRequest(self._topic, member_id, [MemberIdentity(member_id)])
        check_error("LeaveGroup", self._admin.ask(request).error_code)


BENCHMARK = Benchmark(
    name="native",
    summary="topics with one entry per record: produce, and fetch as a member of a group",
    baseline="pipelined XADD of the same fields; XREADGROUP",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
    small={"size": [100]},
)
