"""`moldau bench growth`: what a request costs a worker as everything around it grows.

partitions   Produce of 1 KB to the partitions of a topic in turn; Fetch of one of them
connections  heartbeats over a few of them, and over all
members      of one group: a member's part of a rebalance
groups       of two members: a heartbeat
batch bytes  Produce of one batch
log bytes    Fetch of 64 KB at the end of a log, in its middle and at its start

Each has a broker of its own. The costs are CPU of the worker (and of the store, where it works),
which do not depend on what else the machine does as much as times do.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import uvloop

from broker.wire.batch import read_header
from broker.wire.frame import request_frame
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from loadtest.bench import connections
from loadtest.bench.groups import GroupsRun, allow_connections
from loadtest.bench.harness.client import FETCH, Client, RequestFailed
from loadtest.bench.harness.measure import CpuMeter, summary
from loadtest.bench.harness.native_clients import Limited
from loadtest.bench.harness.replay import Connect, Replayer, Totals, run_load
from loadtest.bench.harness.target import Target, own
from loadtest.bench.produce import make_batch, produce_frame

DIRECTORY = "loadtest/growth"  # from where the command is given: the root of the tree
FETCH_VERSION = 12
SMALL_BATCH = 1000
LOG_BATCH = 64 << 10
CLIENTS, IN_FLIGHT = 8, 4
WRITING_S = 900.0
QUICK_S = 0.3
# Groups wait less for their first members: how long they form is not measured here.
SETTINGS = '[broker]\n"group.initial.rebalance.delay.ms" = "1000"\n'
SHORTEST_LOG = 10_000_000
# So that even the shortest log does not fit: what is not its end is read from the store.
SMALL_CACHE = ("--tail-cache-bytes", str(1 << 20))

Costs = dict[str, list[float]]  # what is done -> its cost in each run
Load = Coroutine[Any, Any, Totals]


class Scale(NamedTuple):
    """How long each point is measured, and how often."""

    seconds: float
    repeat: int


class Series(NamedTuple):
    """A quantity that grows, and how to measure at one size of it."""

    name: str
    values: list[int]
    measure: Callable[[Target, int, Scale], Costs]
    options: tuple[str, ...] = ()  # of the broker


def plan(quick: bool, longest_log: int = 10**9) -> list[Series]:
    logs = [SHORTEST_LOG]
    while logs[-1] * 10 <= longest_log:
        logs.append(logs[-1] * 10)
    return [
        Series("partitions", [1, 10] if quick else [1, 10, 100, 1000], _partitions),
        Series("connections", [1, 100] if quick else [1, 10, 100, 1000, 5000], _connections),
        Series("members", [2, 10] if quick else [2, 10, 100, 1000], _members),
        Series("groups", [1, 10] if quick else [1, 10, 100, 1000], _groups),
        Series("batch bytes", [100, 10_000] if quick else [100, 1000, 10_000, 100_000, 10**6],
               _batch_bytes),
        Series("log bytes", [4_000_000, 8_000_000] if quick else logs, _log_bytes, SMALL_CACHE),
    ]  # fmt: skip


def measure(
    series: Sequence[Series], arguments: argparse.Namespace, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    allow_connections()
    scale = Scale(arguments.seconds, arguments.repeat)
    if arguments.quick:
        scale = Scale(min(QUICK_S, arguments.seconds), 1)
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(SETTINGS)
        settings.flush()
        for one in series:
            with own(1, ["--config", settings.name, *one.options]) as target:
                for value in one.values:
                    costs = one.measure(target, value, scale)
                    rows += [
                        {"what": one.name, "x": value, "run": name, "us": summary(runs)}
                        for name, runs in costs.items()
                    ]
                    advance()
    return rows


def _cost(target: Target, load: Callable[[], Load], roles: Sequence[str]) -> dict[str, float]:
    """CPU of each role for a request, in us."""
    meter = CpuMeter(target.pids)
    totals = uvloop.run(load())
    used = meter.stop()
    return {role: used[role] / max(totals.requests, 1) * 1e6 for role in roles}


def _repeated(
    target: Target, loads: dict[str, Callable[[], Load]], scale: Scale, roles: Sequence[str]
) -> Costs:
    costs: Costs = {}
    for _ in range(scale.repeat):
        for name, load in loads.items():
            for role, cost in _cost(target, load, roles).items():
                costs.setdefault(f"{name}: {role}", []).append(cost)
    return costs


def _replaying(frames: Sequence[bytes], address: tuple[str, int]) -> tuple[Connect, Any]:
    return lambda: Replayer(frames, IN_FLIGHT), address


def _fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic, partitions=[partition])]
    )
    return request_frame(FETCH, FETCH_VERSION, 1, "bench", request)


def _partitions(target: Target, count: int, scale: Scale) -> Costs:
    topic = f"growth-{secrets.token_hex(4)}"
    batch = bytes(make_batch(SMALL_BATCH))
    with Client(target.host, target.port) as client:
        client.create_topic(topic, count)
        where = client.leaders(topic)
    writers = []
    for number in range(CLIENTS):
        mine = range(number, count, CLIENTS) if number < count else [number % count]
        frames = [produce_frame(topic, partition, batch) for partition in mine]
        writers.append(_replaying(frames, where[0]))

    def read() -> Load:
        with Client(target.host, target.port) as client:
            last = client.end_offsets(topic)[0] - 1
        reader = _replaying([_fetch_frame(topic, last, SMALL_BATCH)], where[0])
        return run_load([reader] * CLIENTS, scale.seconds)

    loads: dict[str, Callable[[], Load]] = {
        "Produce, 1 KB": lambda: run_load(writers, scale.seconds),
        "Fetch, 1 KB": read,
    }
    return _repeated(target, loads, scale, ["worker"])


def _connections(target: Target, count: int, scale: Scale) -> Costs:
    costs: Costs = {}
    for _ in range(scale.repeat):
        ways = (connections.DIRECT,)
        (row,) = connections.measure(target, [count], scale.seconds, 1, lambda: None, ways)
        for name in (f"{connections.ACTIVE} active", "all active"):
            cost = row[f"worker us/req, {name}"]["median"]
            costs.setdefault(f"Heartbeat, {name}: worker", []).append(cost)
    return costs


def _group_costs(target: Target, run: GroupsRun, scale: Scale) -> dict[str, list[float]]:
    with Client(target.host, target.port) as client:
        ports = [broker.port for broker in client.metadata().brokers]
    costs: dict[str, list[float]] = {}
    for _ in range(scale.repeat):
        for name, value in uvloop.run(run.measure(ports)).items():
            if value is not None:
                costs.setdefault(name, []).append(value)
    return costs


def _members(target: Target, count: int, scale: Scale) -> Costs:
    costs = _group_costs(target, GroupsRun(target, count, 1, scale.seconds), scale)
    return {
        "rebalance, per member: worker": costs["of it worker us"],
        "Heartbeat: worker": costs["worker us/heartbeat"],
    }


def _groups(target: Target, count: int, scale: Scale) -> Costs:
    costs = _group_costs(target, GroupsRun(target, 2, count, scale.seconds), scale)
    return {
        "rebalance, per member: worker": costs["of it worker us"],
        "Heartbeat: worker": costs["worker us/heartbeat"],
    }


def _batch_bytes(target: Target, size: int, scale: Scale) -> Costs:
    topic = f"growth-{secrets.token_hex(4)}"
    batch = bytes(make_batch(size))
    with Client(target.host, target.port) as client:
        client.create_topic(topic, CLIENTS)
        where = client.leaders(topic)
        writers = [
            _replaying([produce_frame(topic, number, batch)], where[number])
            for number in range(CLIENTS)
        ]
        loads = {"Produce": lambda: run_load(writers, scale.seconds)}
        costs = _repeated(target, loads, scale, ["worker", "store"])
        client.delete_topic(topic)
    return costs


def _log_bytes(target: Target, size: int, scale: Scale) -> Costs:
    topic = f"growth-{secrets.token_hex(4)}"
    batch = bytes(make_batch(LOG_BATCH))
    batches = max(size // len(batch), 3)
    frame = produce_frame(topic, 0, batch)
    per_batch = read_header(batch).record_count
    with Client(target.host, target.port) as client:
        client.create_topic(topic, 1)
        where = client.leaders(topic)[0]
        writer: Connect = lambda: Limited(frame, IN_FLIGHT, batches)  # noqa: E731
        uvloop.run(run_load([(writer, where)], WRITING_S))
        end = client.end_offsets(topic)[0]
        if end != batches * per_batch:
            raise RequestFailed(f"the log has {end} records, not {batches * per_batch}")
        places = {"end": end - per_batch, "middle": batches // 2 * per_batch, "start": 0}
        loads: dict[str, Callable[[], Load]] = {}
        for name, offset in places.items():
            reader = _replaying([_fetch_frame(topic, offset, LOG_BATCH)], where)
            loads[f"Fetch, {name}"] = _loading([reader] * CLIENTS, scale.seconds)
        costs = _repeated(target, loads, scale, ["worker", "store"])
        client.delete_topic(topic)
    told = {"Fetch, start: store", *(name for name in costs if name.endswith("worker"))}
    return {name: runs for name, runs in costs.items() if name in told}


def _loading(connected: list[tuple[Connect, Any]], seconds: float) -> Callable[[], Load]:
    return lambda: run_load(connected, seconds)
