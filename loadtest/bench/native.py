"""The benchmark of native topics: an entry for each record, written and read by both sides.

Baselines are what a Redis application does with the same records on the same store: XADD of the
same fields, as many in a pipeline as a batch has records, and XREADGROUP with the COUNT that the
broker's own replies come to. What was written is then read, so every figure is of the same data.
"""

from __future__ import annotations

import argparse
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

import redis
import uvloop

from broker.errors import ErrorCode
from broker.store import resp
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from broker.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from broker.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from broker.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from broker.wire.records import Record, build_batch
from loadtest.bench.harness.client import Client, RequestFailed
from loadtest.bench.harness.measure import CpuMeter, Figure
from loadtest.bench.harness.native_clients import GroupFetcher, GroupReader, Limited, LimitedLines
from loadtest.bench.harness.replay import Connect, Replayer, Totals, run_load
from loadtest.bench.harness.target import Target, TargetError
from loadtest.bench.produce import produce_frame, store_address
from ops.client import Connection

SIZES = [100, 1024]
BATCH_RECORDS = 200
RECORDS = 120_000  # of a run, unless that is more than
RUN_BYTES = 48 << 20
KEY = b"key-00000042"
RAW_XADD, PRODUCE, RAW_READ, FETCH = "raw XADD", "produce", "raw XREADGROUP", "group fetch"
BASELINES = {PRODUCE: RAW_XADD, FETCH: RAW_READ}
ROLES = ("worker", "store", "client")

JOIN, LEAVE, SYNC = APIS[ApiKey.JOIN_GROUP], APIS[ApiKey.LEAVE_GROUP], APIS[ApiKey.SYNC_GROUP]
SESSION_MS = 300_000  # nobody sends heartbeats here

Address = str | tuple[str, int]


class Run(NamedTuple):
    records: int
    totals: Totals
    cpu: dict[str, float]


def measure(
    arguments: argparse.Namespace, target: Target, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    if target.store_url is None:
        raise TargetError("native topics are measured against their store: only on its machine")
    rows = []
    for size in arguments.size or SIZES:
        series: dict[str, list[Run]] = {}
        for _ in range(arguments.repeat):
            with NativeRound(target, target.store_url, arguments, size) as one:
                for name, run in one.runs():
                    series.setdefault(name, []).append(run)
            advance()
        rows += _rows(size, series)
    return rows


def _rows(size: int, series: dict[str, list[Run]]) -> list[dict[str, Any]]:
    rates = {
        name: Figure([run.records / run.totals.seconds for run in runs])
        for name, runs in series.items()
    }
    rows = []
    for name, runs in series.items():
        row: dict[str, Any] = {"size": size, "run": name, "records/s": rates[name].to_json()}
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
    """Each of the four once; topic and streams of its own, gone afterwards."""

    def __init__(
        self, target: Target, store_url: str, arguments: argparse.Namespace, size: int
    ) -> None:
        self._target = target
        self._store_url = store_url
        self._arguments = arguments
        self._partitions = arguments.partitions
        self._topic = f"bench-{secrets.token_hex(4)}"
        self._client_id = f"{self._topic}-member"
        self._value = bytes(size)
        wanted = max(min(RECORDS, RUN_BYTES // size) // self._partitions, BATCH_RECORDS)
        self._batches = wanted // BATCH_RECORDS  # of a partition
        self._now = time.time_ns() // 1_000_000
        self._made: list[Replayer] = []  # of the last run
        self._acknowledged = 0  # records of it
        self._stack = ExitStack()

    def __enter__(self) -> NativeRound:
        self._store = self._stack.enter_context(redis.Redis.from_url(self._store_url))
        self._admin = self._stack.enter_context(Client(self._target.host, self._target.port))
        configs = [CreatableTopicConfig("moldau.storage", "native")]
        topic = CreatableTopic(self._topic, self._partitions, 1, [], configs)
        (answer,) = self._admin.call(CreateTopicsRequest([topic]), 5).topics
        if answer.error_code:
            raise RequestFailed(f"{self._topic}: {answer.error_message}")
        self._leaders = self._admin.leaders(self._topic)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            self._admin.delete_topic(self._topic)
            self._store.delete(*self._raw_keys())

    def _raw_keys(self) -> list[bytes]:
        return [f"bench:{self._topic}:{number}".encode() for number in range(self._partitions)]

    def _raw_address(self) -> Address:
        return store_address(self._store_url)

    def runs(self) -> Iterator[tuple[str, Run]]:
        yield RAW_XADD, self._measure([self._raw_writer(key) for key in self._raw_keys()])
        yield PRODUCE, self._measure([self._producer(n) for n in range(self._partitions)])
        written = [self._length(f"moldau:{self._topic}:{n}") for n in range(self._partitions)]
        if sum(written) != self._acknowledged:
            text = f"{self._acknowledged} records acknowledged, {sum(written)} in the streams"
            raise RequestFailed(text)
        member_id = self._join()
        fetched = self._measure([self._fetcher(n, count) for n, count in enumerate(written)])
        fetchers = [client for client in self._made if isinstance(client, GroupFetcher)]
        self._check_pending([client.records for client in fetchers])
        self._leave(member_id)
        count = max(client.most for client in fetchers)
        yield RAW_READ, self._measure([self._raw_reader(key, count) for key in self._raw_keys()])
        yield FETCH, fetched

    def _measure(self, connections: Sequence[tuple[Connect, Address]]) -> Run:
        self._made = []
        noted = [(self._noted(make), address) for make, address in connections]
        meter = CpuMeter(self._target.pids)
        totals = uvloop.run(run_load(noted, self._arguments.seconds))
        used = meter.stop()
        records = sum(
            client.records
            if isinstance(client, GroupFetcher | GroupReader)
            else client.requests * BATCH_RECORDS
            for client in self._made
        )
        self._acknowledged = records
        return Run(records, totals, {role: used[role] for role in ROLES})

    def _noted(self, make: Connect) -> Connect:
        def made() -> Replayer:
            client = make()
            self._made.append(client)
            return client

        return made

    def _length(self, key: str | bytes) -> int:
        return int(cast("int", self._store.xlen(key)))

    # --- writing ---

    def _raw_writer(self, key: bytes) -> tuple[Connect, Address]:
        fields = (b"key", KEY, b"value", self._value, b"timestamp", b"%d" % self._now)
        frame = resp.command("XADD", key, "*", *fields) * BATCH_RECORDS

        def make() -> Replayer:
            client = LimitedLines(frame, self._arguments.in_flight, self._batches)
            client.commands = BATCH_RECORDS
            return client

        return make, self._raw_address()

    def _producer(self, partition: int) -> tuple[Connect, Address]:
        records = [Record(n, self._now, KEY, self._value) for n in range(BATCH_RECORDS)]
        batch = bytes(build_batch(records, base_offset=0, last_offset=BATCH_RECORDS - 1))
        frame = produce_frame(self._topic, partition, batch)
        in_flight, batches = self._arguments.in_flight, self._batches
        return lambda: Limited(frame, in_flight, batches), self._leaders[partition]

    # --- reading ---

    def _fetcher(self, partition: int, records: int) -> tuple[Connect, Address]:
        make = partial(GroupFetcher, self._client_id, self._topic, partition, records)
        return make, self._leaders[partition]

    def _raw_reader(self, key: bytes, count: int) -> tuple[Connect, Address]:
        self._store.xgroup_create(key, "bench", "0")
        words = ("XREADGROUP", "GROUP", "bench", "reader", "COUNT", count, "STREAMS", key, ">")
        make = partial(GroupReader, resp.command(*words), count, self._length(key))
        return make, self._raw_address()

    def _check_pending(self, fetched: list[int]) -> None:
        """It was the group that read: what it read is pending in Redis."""
        for number, count in enumerate(fetched):
            key = f"moldau:{self._topic}:{number}"
            told = cast("dict[str, Any]", self._store.xpending(key, self._topic))
            if told["pending"] != count:
                raise RequestFailed(f"{key}: {told['pending']} of {count} records are pending")

    def _join(self) -> str:
        """The only member of a group, with all partitions of the topic."""
        client = Connection((self._target.host, self._target.port), client_id=self._client_id)
        with client:
            member_id: str = ""
            protocols = [JoinGroupRequestProtocol("range", _subscription(self._topic))]
            while True:
                request = JoinGroupRequest(
                    self._topic, SESSION_MS, SESSION_MS, member_id, None, "consumer", protocols
                )
                joined = client.call(request, JOIN.highest)
                member_id = joined.member_id
                if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    break
            _expect_no_error("join", joined.error_code)
            assignment = _assignment(self._topic, self._partitions)
            sync = SyncGroupRequest(
                self._topic,
                joined.generation_id,
                member_id,
                None,
                "consumer",
                "range",
                [SyncGroupRequestAssignment(member_id, assignment)],
            )
            _expect_no_error("sync", client.call(sync, SYNC.highest).error_code)
            return member_id

    def _leave(self, member_id: str) -> None:
        request = LeaveGroupRequest(self._topic, member_id, [MemberIdentity(member_id)])
        _expect_no_error("leave", self._admin.call(request, LEAVE.highest).error_code)


def _expect_no_error(what: str, code: int) -> None:
    if code:
        raise RequestFailed(f"{what}: error {code}")


def _topic_name(topic: str) -> bytes:
    return struct.pack(">h", len(topic)) + topic.encode()


def _subscription(topic: str) -> bytes:
    return struct.pack(">hi", 0, 1) + _topic_name(topic) + struct.pack(">i", -1)


def _assignment(topic: str, partitions: int) -> bytes:
    numbers = struct.pack(f">i{partitions}i", partitions, *range(partitions))
    return struct.pack(">hi", 0, 1) + _topic_name(topic) + numbers + struct.pack(">i", -1)
