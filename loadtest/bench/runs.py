"""How each benchmark of `moldau bench` is run: repeated, baseline and broker in turn, summed up.

A run of RUNS takes the arguments, the broker, and whom to tell that a round is over; it gives rows
of figures. What the machine does not show (a broker of somebody else's has no processes here that
we know) is None.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import uvloop

from loadtest.bench.connections import COUNTS
from loadtest.bench.connections import measure as measure_connections
from loadtest.bench.fetch import FetchBench
from loadtest.bench.groups import GroupsRun, allow_connections
from loadtest.bench.harness.client import Client
from loadtest.bench.harness.coordinator_requests import workers_of
from loadtest.bench.harness.measure import CpuMeter, resident_bytes, summary
from loadtest.bench.harness.replay import Totals
from loadtest.bench.harness.target import Target, TargetError, own
from loadtest.bench.latency import echo_latency, record_latency
from loadtest.bench.native import SIZES as NATIVE_SIZES
from loadtest.bench.native import measure as measure_native
from loadtest.bench.produce import ProduceBench
from loadtest.bench.router import RouterBench
from loadtest.bench.scaling import WORKERS, ScalingBench

GROUPS = [(10, 1), (100, 1), (1000, 1), (2, 2000)]  # members of each, how many
Bench = ProduceBench | FetchBench | RouterBench | ScalingBench
Figures = dict[str, float | None]
Series = dict[str, list[Figures]]
Rows = list[dict[str, Any]]
Advance = Callable[[], None]
BENCHES: dict[str, tuple[type[Bench], list[int]]] = {
    "produce": (ProduceBench, [1024, 16384, 65536, 262144]),
    "fetch": (FetchBench, [16384, 65536]),
    "router": (RouterBench, [1024]),
}


def rounds_of(arguments: argparse.Namespace, what: str) -> int:
    """How often a run will say that it advanced."""
    sizes = len(arguments.size or [])
    each = {
        "scaling": 1,
        "latency": 1,
        "groups": len(arguments.members or GROUPS),
        "native": sizes or len(NATIVE_SIZES),
        "connections": len(arguments.count or COUNTS),
    }
    if what in BENCHES:
        each[what] = sizes or len(BENCHES[what][1])
    return int(each[what] * arguments.repeat)


def options_of(arguments: argparse.Namespace) -> list[str]:
    """Of a broker of our own."""
    options = ["--store-fsync", arguments.store_fsync]
    return [*options, "--tail-cache-bytes", str(arguments.tail_cache_bytes)]


def _sizes(what: str, arguments: argparse.Namespace, target: Target, advance: Advance) -> Rows:
    make, usual = BENCHES[what]
    rows: Rows = []
    for size in arguments.size or usual:
        bench = make(target, arguments, size)
        series: Series = {}
        with bench:
            pids = bench.pids if isinstance(bench, RouterBench) else target.pids
            for _ in range(arguments.repeat):
                _round(bench, pids, series)
                advance()
        rows += _rows(bench, series)
    return rows


def scaling(arguments: argparse.Namespace, advance: Advance) -> Rows:
    """All brokers run at once, and are measured in turn: a drift would look like scaling."""
    if arguments.bootstrap:
        raise TargetError("scaling starts brokers of its own, not with --bootstrap")
    with ExitStack() as stack:
        benches = []
        for workers in WORKERS:
            target = stack.enter_context(own(workers, options_of(arguments)))
            benches.append(stack.enter_context(ScalingBench(target, arguments, workers)))
        series: list[Series] = [{} for _ in benches]
        for _ in range(arguments.repeat):
            for bench, runs in zip(benches, series, strict=True):
                _round(bench, bench.pids, runs)
            advance()
    rows = [_rows(bench, runs) for bench, runs in zip(benches, series, strict=True)]
    useless = {"size", "of baseline", "MB/s", "GB/s of worker CPU"}
    return [
        {"workers": row["size"], **{key: row[key] for key in row if key not in useless}}
        for kind in zip(*rows, strict=True)  # one kind of request, by workers
        for row in kind
    ]


def _latency(arguments: argparse.Namespace, target: Target, advance: Advance) -> Rows:
    runs: Series = {"bare uvloop": [], "record": []}
    for _ in range(arguments.repeat):
        for name, measured in (("bare uvloop", _echo), ("record", record_latency)):
            meter = CpuMeter(target.pids)
            totals = measured(target, arguments.rate, arguments.seconds)
            used = meter.stop()
            shares = {"p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99, "max ms": 1.0}
            figures: Figures = {"records/s": totals.per_second}
            figures |= {key: totals.percentile_ms(share) for key, share in shares.items()}
            for role in ("broker", "worker", "store"):
                each = used[role] / max(totals.requests, 1) * 1e6
                known = target.pids[role] and name == "record"
                figures[f"{role} us/record"] = each if known else None
            figures["broker MB"] = _megabytes(target.broker_pids)
            runs[name].append(figures)
        advance()
    return [{"run": name, **_summed(many)} for name, many in runs.items()]


def _echo(target: Target, per_second: float, seconds: float) -> Totals:
    return echo_latency(per_second, seconds)


def _groups(arguments: argparse.Namespace, target: Target, advance: Advance) -> Rows:
    allow_connections()
    with Client(target.host, target.port) as admin:
        ports = [port for _, port in workers_of(admin)]
    sizes = [(members, arguments.groups) for members in arguments.members or []] or GROUPS
    rows: Rows = []
    for members, groups in sizes:
        run = GroupsRun(target, members, groups, arguments.seconds)
        runs = []
        for _ in range(arguments.repeat):
            runs.append(uvloop.run(run.measure(ports)))
            advance()
        figures = _summed(runs)
        if figures.get("KB/member"):  # later runs live in memory the first one took
            figures["KB/member"] = summary([figures["KB/member"]["max"]])
        rows.append({"run": run.name, **figures})
    columns = dict.fromkeys(key for row in rows for key in (*row, "KB/member"))
    return [{key: row.get(key) for key in columns} for row in rows]


def _connections(arguments: argparse.Namespace, target: Target, advance: Advance) -> Rows:
    allow_connections()
    counts = arguments.count or COUNTS
    return measure_connections(target, counts, arguments.seconds, arguments.repeat, advance)


def run(what: str, arguments: argparse.Namespace, target: Target, advance: Advance) -> Rows:
    """One benchmark against one broker."""
    if what in BENCHES:
        return _sizes(what, arguments, target, advance)
    return RUNS[what](arguments, target, advance)


RUNS: dict[str, Callable[[argparse.Namespace, Target, Advance], Rows]] = {
    "latency": _latency,
    "groups": _groups,
    "connections": _connections,
    "native": measure_native,
}


def _round(bench: Bench, pids: dict[str, list[int]], series: Series) -> None:
    """Each series of the bench (baseline and broker in turn) once."""
    for name, load in bench.loads():
        meter = CpuMeter(pids)
        totals: Totals = uvloop.run(load())
        used = meter.stop()
        # "worker kernel" is known when the worker is.
        cpu = {
            role: used[role] if pids[role.removesuffix(" kernel")] else None for role in bench.roles
        }
        figures = _figures(totals, cpu, bench.bytes_of(totals))
        for role in ("broker", "worker", "store"):
            if role in bench.roles:
                figures[f"{role} MB"] = _megabytes(pids[role])
        series.setdefault(name, []).append(figures)


def _megabytes(pids: list[int]) -> float | None:
    return resident_bytes(pids) / 1e6 if pids else None


def _summed(runs: list[Figures]) -> dict[str, Any]:
    return {key: summary([run[key] for run in runs]) for key in runs[0]}


def _rows(bench: Bench, series: Series) -> Rows:
    rows: Rows = []
    for name, runs in series.items():
        figures = _summed(runs)
        against = series.get(bench.baselines.get(name, ""))
        ratio = None
        if against:
            ratio = figures["MB/s"]["median"] / _summed(against)["MB/s"]["median"]
        rows.append({"size": bench.size, "run": name, **figures, "of baseline": ratio})
    return rows


def _figures(totals: Totals, cpu: dict[str, float | None], moved: int) -> Figures:
    figures: Figures = {
        "requests/s": totals.per_second,
        "MB/s": moved / totals.seconds / 1e6,
        "p50 ms": totals.percentile_ms(0.5),
        "p99 ms": totals.percentile_ms(0.99),
    }
    for role, seconds in cpu.items():
        each = None if seconds is None else seconds / max(totals.requests, 1) * 1e6
        figures[f"{role} us/req"] = each
    busy = cpu["worker"]
    figures["GB/s of worker CPU"] = moved / busy / 1e9 if busy else None
    if "broker" in cpu:  # of a small batch it is so little that MB tell more than GB
        busy = cpu["broker"]
        figures["MB/s of broker CPU"] = moved / busy / 1e6 if busy else None
    return figures
