"""The growth benchmark: what a request costs a worker as everything around it grows.

partitions   Produce of 1 KB to the partitions of a topic in turn; Fetch of one of them
connections  heartbeats over a few of them, and over all
members      of one group: a member's share of a rebalance, a heartbeat
groups       of two members: the same
batch bytes  Produce of one batch
log bytes    Fetch of 64 KB at the end of a log, in its middle and at its start

Each has a broker of its own. The costs are CPU time of the worker, and of the store leaders it is
involved: they depend less on the rest of the machine than elapsed times do.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import uvloop

from moldau.broker.wire.batch import read_header
from moldau.loadtest.bench import connections
from moldau.loadtest.bench.groups import GroupsRun
from moldau.loadtest.bench.harness import growth_report
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Client, RequestFailed, new_name
from moldau.loadtest.bench.harness.figures import summary
from moldau.loadtest.bench.harness.measure import CpuMeter
from moldau.loadtest.bench.harness.replay import (
    Address,
    Connection,
    CountedReplayer,
    Totals,
    replaying,
    run_load,
)
from moldau.loadtest.bench.harness.requests import encode, fetch_request
from moldau.loadtest.bench.harness.target import Target, TargetError, own_broker
from moldau.loadtest.bench.harness.turns import Load
from moldau.loadtest.bench.produce import make_batch, produce_frame

DIRECTORY = "loadtest/growth"  # from where the command is run: the root of the tree
SMALL_BATCH = 1000
LOG_BATCH = 64 << 10
CONNECTIONS, IN_FLIGHT = 8, 4
WRITE_TIMEOUT_S = 900.0
QUICK_S = 0.3
QUICK_VALUES = {
    "partitions": [1, 10],
    "connections": [1, 100],
    "members": [2, 10],
    "groups": [1, 10],
    "batch bytes": [100, 10_000],
    "log bytes": [4_000_000, 8_000_000],
}
# A short initial rebalance delay: how long groups take to form is not measured here.
BROKER_SETTINGS = '[broker]\n"group.initial.rebalance.delay.ms" = "{}"\n'
REBALANCE_DELAY_MS, QUICK_REBALANCE_DELAY_MS = 1000, 100
SHORTEST_LOG = 10_000_000
# Even the shortest log does not fit: all but its end is read from the store.
SMALL_CACHE = ("--tail-cache-bytes", str(1 << 20))

Costs = dict[str, list[float]]  # what is done -> its cost in each run


class Sampling(NamedTuple):
    """How long each point is measured, and how often."""

    seconds: float
    repeat: int


class GrowthSeries(NamedTuple):
    """A quantity that grows, and how to measure at one size of it."""

    name: str
    values: list[int]
    measure: Callable[[Target, int, Sampling], Costs]
    options: tuple[str, ...] = ()  # of the broker


def all_series(quick: bool, longest_log: int) -> list[GrowthSeries]:
    logs = [SHORTEST_LOG]
    while logs[-1] * 10 <= longest_log:
        logs.append(logs[-1] * 10)
    batches = [100, 1000, 10_000, 100_000, 10**6]
    series = [
        GrowthSeries("partitions", [1, 10, 100, 1000], _partitions),
        GrowthSeries("connections", [1, 10, 100, 1000, 5000], _connections),
        GrowthSeries("members", [2, 10, 100, 1000], _members),
        GrowthSeries("groups", [1, 10, 100, 1000], _groups),
        GrowthSeries("batch bytes", batches, _batch_bytes),
        GrowthSeries("log bytes", logs, _log_bytes, SMALL_CACHE),
    ]
    if quick:
        series = [one._replace(values=QUICK_VALUES[one.name]) for one in series]
    return series


def _series_of(arguments: argparse.Namespace) -> list[GrowthSeries]:
    return all_series(arguments.quick, arguments.longest_log)


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    if arguments.bootstrap:
        raise TargetError("growth starts a broker of its own: leave out --bootstrap")
    sampling = Sampling(arguments.seconds, arguments.repeat)
    delay = REBALANCE_DELAY_MS
    if arguments.quick:
        sampling = Sampling(min(QUICK_S, arguments.seconds), 1)
        delay = QUICK_REBALANCE_DELAY_MS
    rows: Rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(BROKER_SETTINGS.format(delay))
        settings.flush()
        for together in _by_broker(arguments):
            with own_broker(1, ["--config", settings.name, *together[0].options]) as target:
                for series in together:
                    rows += _measure(series, target, sampling, advance)
    return rows


def _by_broker(arguments: argparse.Namespace) -> list[list[GrowthSeries]]:
    """Each series has a broker of its own; --quick shares them where the options allow it."""
    if not arguments.quick:
        return [[series] for series in _series_of(arguments)]
    by_options: dict[tuple[str, ...], list[GrowthSeries]] = {}
    for series in _series_of(arguments):
        by_options.setdefault(series.options, []).append(series)
    return list(by_options.values())


def _measure(series: GrowthSeries, target: Target, sampling: Sampling, advance: Advance) -> Rows:
    rows: Rows = []
    for value in series.values:
        costs = series.measure(target, value, sampling)
        rows += [
            {"what": series.name, "x": value, "run": name, "us": summary(runs)}
            for name, runs in costs.items()
        ]
        advance()
    return rows


def _cost(target: Target, load: Load, roles: Sequence[str]) -> dict[str, float]:
    """CPU of each role for a request, in us."""
    meter = CpuMeter(target.pids)
    totals = uvloop.run(load())
    used = meter.stop()
    return {role: used[role] / max(totals.requests, 1) * 1e6 for role in roles}


def _repeated(
    target: Target, loads: dict[str, Load], sampling: Sampling, roles: Sequence[str]
) -> Costs:
    costs: Costs = {}
    for _ in range(sampling.repeat):
        for name, load in loads.items():
            for role, cost in _cost(target, load, roles).items():
                costs.setdefault(f"{name}: {role}", []).append(cost)
    return costs


def _connection(frames: Sequence[bytes], address: Address) -> Connection:
    return replaying(frames, IN_FLIGHT, address)


def _fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    return encode(fetch_request(topic, 0, offset, max_bytes))


def _partitions(target: Target, count: int, sampling: Sampling) -> Costs:
    topic = new_name("growth")
    batch = make_batch(SMALL_BATCH)
    with Client(target.address) as client:
        client.create_topic(topic, count)
        leaders = client.leaders(topic)
    writers = []
    for number in range(CONNECTIONS):
        mine = range(number, count, CONNECTIONS) if number < count else [number % count]
        frames = [produce_frame(topic, partition, batch) for partition in mine]
        writers.append(_connection(frames, leaders[0]))

    async def read() -> Totals:
        with Client(target.address) as client:
            last = client.end_offsets(topic)[0] - 1
        reader = _connection([_fetch_frame(topic, last, SMALL_BATCH)], leaders[0])
        return await run_load([reader] * CONNECTIONS, sampling.seconds)

    loads: dict[str, Load] = {
        "Produce, 1 KB": lambda: run_load(writers, sampling.seconds),
        "Fetch, 1 KB": read,
    }
    return _repeated(target, loads, sampling, ["worker"])


def _connections(target: Target, count: int, sampling: Sampling) -> Costs:
    costs: Costs = {}
    for _ in range(sampling.repeat):
        ways = (connections.DIRECT,)
        (row,) = connections.measure(target, [count], sampling.seconds, 1, lambda: None, ways)
        for name in (f"{connections.ACTIVE} active", "all active"):
            cost = row[f"worker us/req, {name}"]["median"]
            costs.setdefault(f"Heartbeat, {name}: worker", []).append(cost)
    return costs


def _group_costs(target: Target, run: GroupsRun, sampling: Sampling) -> Costs:
    with Client(target.address) as client:
        ports = [port for _, port in client.brokers()]
    turns = [uvloop.run(run.measure(ports)) for _ in range(sampling.repeat)]
    shown = {
        "rebalance, per member: worker": "of it worker us",
        "Heartbeat: worker": "worker us/heartbeat",
    }
    return {
        name: [value for turn in turns if (value := turn[figure]) is not None]
        for name, figure in shown.items()
    }


def _members(target: Target, count: int, sampling: Sampling) -> Costs:
    return _group_costs(target, GroupsRun(target, count, 1, sampling.seconds), sampling)


def _groups(target: Target, count: int, sampling: Sampling) -> Costs:
    return _group_costs(target, GroupsRun(target, 2, count, sampling.seconds), sampling)


def _batch_bytes(target: Target, size: int, sampling: Sampling) -> Costs:
    topic = new_name("growth")
    batch = make_batch(size)
    with Client(target.address) as client:
        client.create_topic(topic, CONNECTIONS)
        leaders = client.leaders(topic)
        writers = [
            _connection([produce_frame(topic, number, batch)], leaders[number])
            for number in range(CONNECTIONS)
        ]
        loads = {"Produce": lambda: run_load(writers, sampling.seconds)}
        costs = _repeated(target, loads, sampling, ["worker", "store"])
        client.delete_topic(topic)
    return costs


def _log_bytes(target: Target, size: int, sampling: Sampling) -> Costs:
    topic = new_name("growth")
    batch = make_batch(LOG_BATCH)
    batches = max(size // len(batch), 3)
    frame = produce_frame(topic, 0, batch)
    per_batch = read_header(batch).record_count
    with Client(target.address) as client:
        client.create_topic(topic, 1)
        leader = client.leaders(topic)[0]
        writer = (lambda: CountedReplayer(frame, IN_FLIGHT, batches), leader)
        uvloop.run(run_load([writer], WRITE_TIMEOUT_S))
        end = client.end_offsets(topic)[0]
        if end != batches * per_batch:
            raise RequestFailed(f"the log has {end} records, not {batches * per_batch}")
        offsets = {"end": end - per_batch, "middle": batches // 2 * per_batch, "start": 0}
        loads: dict[str, Load] = {}
        for name, offset in offsets.items():
            reader = _connection([_fetch_frame(topic, offset, LOG_BATCH)], leader)
            loads[f"Fetch, {name}"] = _load([reader] * CONNECTIONS, sampling)
        costs = _repeated(target, loads, sampling, ["worker", "store"])
        client.delete_topic(topic)
    shown = {"Fetch, start: store", *(name for name in costs if name.endswith("worker"))}
    return {name: runs for name, runs in costs.items() if name in shown}


def _load(connections: list[Connection], sampling: Sampling) -> Load:
    return lambda: run_load(connections, sampling.seconds)


def _save(rows: Rows, arguments: argparse.Namespace) -> list[str]:
    return [
        *growth_report.plot(rows, arguments.out),
        growth_report.write_table(rows, arguments.out),
    ]


BENCHMARK = Benchmark(
    name="growth",
    summary="how the CPU of a request grows with all that is around it, as table and plots",
    baseline="",
    run=_run,
    rounds=lambda arguments: sum(len(series.values) for series in _series_of(arguments)),
    in_all=False,
    shown=growth_report.shown,
    save=_save,
)
