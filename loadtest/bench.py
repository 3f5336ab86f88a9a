"""`moldau bench`: how fast a broker is here, against a baseline measured in the same run.

produce  pre-encoded Produce frames over several connections; baseline: XADD of the same bytes to
         the same store, by the same client
fetch    the tail (from the worker's cache) and the start of a log (from the store, when the log is
         larger than the cache); baselines:
         a bare uvloop server that sends as many bytes, and XRANGE of the same entries
router   small requests (heartbeats, produce) through the router, and through a bare uvloop process
         that only forwards; baseline: directly to the workers
scaling  heartbeats, commits and look-ups of coordinators, directly and through the router, with 1,
         2 and 4 workers: brokers of its own, all measured in turn
latency  one small record at a time, from the produce call to a waiting consumer; baseline: the
         round trip to a bare uvloop server
groups   members on connections of their own: groups form, rebalance, heartbeat in a closed loop;
         baseline of the heartbeats: a bare uvloop server
native   topics with an entry for each record: produce, and fetch by a group's member; baselines:
         pipelined XADD of the same fields, and XREADGROUP with the same COUNT

Every run is repeated, baseline and broker in turn, so that what else the machine does hits both;
reported are medians and ranges. CPU is that of the processes, by their own clocks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import uvloop
from rich.progress import Progress

from loadtest.client import Client
from loadtest.fetching import FetchBench
from loadtest.grouping import GroupsRun, allow_connections
from loadtest.latency import echo_latency, record_latency
from loadtest.measure import CpuMeter, Figure, show, size_name, table
from loadtest.native import SIZES as NATIVE_SIZES
from loadtest.native import measure as measure_native
from loadtest.producing import ProduceBench
from loadtest.replay import Totals
from loadtest.routing import RouterBench
from loadtest.scaling import WORKERS, ScalingBench
from loadtest.target import Target, TargetError, own, running

EPILOG = """\
examples:
  moldau bench produce                          a broker of its own, all sizes
  moldau bench produce --size 16384 --repeat 5  one size, five times
  moldau bench fetch --bootstrap 127.0.0.1:9092 a broker that runs already
  moldau bench router --connections 64 --in-flight 1    the second hop, many clients
  moldau bench scaling --in-flight 1            1, 2 and 4 workers
  moldau bench latency --rate 1000              open loop, 1,000 records a second
  moldau bench groups                           one group of 10, 100, 1,000; 2,000 groups of 2
  moldau bench groups --members 2 --groups 500  500 groups of 2 members
  moldau bench native --size 100                records of 100 bytes, shared with Redis
"""

PRODUCE_SIZES = [1024, 16384, 65536, 262144]
FETCH_SIZES = [16384, 65536]
GROUPS = [(10, 1), (100, 1), (1000, 1), (2, 2000)]  # members of each, how many
ROUTER_SIZES = [1024]
Bench = ProduceBench | FetchBench | RouterBench | ScalingBench
Series = dict[str, list[dict[str, float]]]
BENCHES: dict[str, tuple[type[Bench], list[int]]] = {
    "produce": (ProduceBench, PRODUCE_SIZES),
    "fetch": (FetchBench, FETCH_SIZES),
    "router": (RouterBench, ROUTER_SIZES),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.epilog = EPILOG
    parser.add_argument("what", choices=[*BENCHES, "scaling", "latency", "groups", "native"])
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="measure a broker that runs")
    parser.add_argument("--workers", type=int, default=1, help="of the broker's own (default 1)")
    parser.add_argument("--size", type=int, action="append", help="batch size; may be repeated")
    parser.add_argument(
        "--connections", type=int, default=8, help="of one run; scaling: for each worker"
    )
    parser.add_argument("--in-flight", type=int, default=4, help="requests out per connection")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="per run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--log-bytes", type=int, default=256 << 20, help="fetch: log to write first"
    )
    parser.add_argument("--tail-cache-bytes", type=int, default=128 << 20, help="of the own broker")
    parser.add_argument("--rate", type=float, default=100.0, help="latency: records per second")
    parser.add_argument("--members", type=int, action="append", help="groups: of one group")
    parser.add_argument("--groups", type=int, default=1, help="groups: how many, with --members")
    parser.add_argument("--store-fsync", choices=["everysec", "always", "no"], default="everysec")
    parser.add_argument("--json", action="store_true", help="figures as JSON on standard output")


@contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[Target]:
    if arguments.bootstrap:
        yield running(arguments.bootstrap)
        return
    with own(arguments.workers, _options(arguments)) as target:
        yield target


def _options(arguments: argparse.Namespace) -> list[str]:
    options = ["--store-fsync", arguments.store_fsync]
    return [*options, "--tail-cache-bytes", str(arguments.tail_cache_bytes)]


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.what == "scaling":
            rows = _measure_scaling(arguments)
        else:
            with _target(arguments) as target:
                if arguments.what == "latency":
                    rows = _measure_latency(arguments, target)
                elif arguments.what == "groups":
                    rows = _measure_groups(arguments, target)
                elif arguments.what == "native":
                    rows = _measure_native(arguments, target)
                else:
                    rows = _measure(arguments, target)
    except (TargetError, OSError) as fault:
        where = f" ({arguments.bootstrap})" if arguments.bootstrap else ""
        print(f"moldau bench: {fault}{where}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({"bench": arguments.what, "rows": rows}, indent=2))
    else:
        show(table(f"moldau bench {arguments.what}", [_readable(row) for row in rows]))
    return 0


def _measure(arguments: argparse.Namespace, target: Target) -> list[dict[str, Any]]:
    make, usual = BENCHES[arguments.what]
    sizes = arguments.size or usual
    rows: list[dict[str, Any]] = []
    with Progress(transient=True, disable=arguments.json or not sys.stderr.isatty()) as progress:
        task = progress.add_task(arguments.what, total=len(sizes) * arguments.repeat)
        for size in sizes:
            bench = make(target, arguments, size)
            series: Series = {}
            with bench:
                pids = bench.pids if isinstance(bench, RouterBench) else target.pids
                for _ in range(arguments.repeat):
                    _round(bench, pids, series)
                    progress.advance(task)
            rows += _rows(bench, series)
    return rows


def _measure_scaling(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All brokers run at once, and are measured in turn: a drift would look like scaling."""
    if arguments.bootstrap:
        raise TargetError("scaling starts brokers of its own, not with --bootstrap")
    with ExitStack() as stack:
        benches = []
        for workers in WORKERS:
            target = stack.enter_context(own(workers, _options(arguments)))
            benches.append(stack.enter_context(ScalingBench(target, arguments, workers)))
        series: list[Series] = [{} for _ in benches]
        for _ in range(arguments.repeat):
            for bench, runs in zip(benches, series, strict=True):
                _round(bench, bench.pids, runs)
    rows = [_rows(bench, runs) for bench, runs in zip(benches, series, strict=True)]
    useless = {"size", "of baseline", "MB/s", "GB/s of worker CPU"}
    return [
        {"workers": row["size"], **{key: row[key] for key in row if key not in useless}}
        for kind in zip(*rows, strict=True)  # one kind of request, by workers
        for row in kind
    ]


def _measure_latency(arguments: argparse.Namespace, target: Target) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, float]]] = {"bare uvloop": [], "record": []}
    for _ in range(arguments.repeat):
        for name, totals in (
            ("bare uvloop", echo_latency(arguments.rate, arguments.seconds)),
            ("record", record_latency(target, arguments.rate, arguments.seconds)),
        ):
            shares = {"p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99, "max ms": 1.0}
            figures = {key: totals.percentile_ms(share) for key, share in shares.items()}
            runs[name].append({"records/s": totals.per_second, **figures})
    return [
        {"run": name, **{key: Figure([run[key] for run in many]).to_json() for key in many[0]}}
        for name, many in runs.items()
    ]


def _measure_groups(arguments: argparse.Namespace, target: Target) -> list[dict[str, Any]]:
    allow_connections()
    with Client(target.host, target.port) as admin:
        brokers = sorted(admin.metadata().brokers, key=lambda broker: broker.node_id)
    ports = [broker.port for broker in brokers]
    sizes = [(members, arguments.groups) for members in arguments.members or []] or GROUPS
    rows = []
    with Progress(transient=True, disable=arguments.json or not sys.stderr.isatty()) as progress:
        task = progress.add_task("groups", total=len(sizes) * arguments.repeat)
        for members, groups in sizes:
            run = GroupsRun(target, members, groups, arguments.seconds)
            runs = []
            for _ in range(arguments.repeat):
                runs.append(uvloop.run(run.measure(ports)))
                progress.advance(task)
            figures = {key: Figure([one[key] for one in runs]).to_json() for key in runs[0]}
            if "KB/member" in figures:  # later runs live in memory the first one took
                figures["KB/member"] = Figure([figures["KB/member"]["max"]]).to_json()
            rows.append({"run": run.name, **figures})
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in columns} for row in rows]


def _measure_native(arguments: argparse.Namespace, target: Target) -> list[dict[str, Any]]:
    rounds = len(arguments.size or NATIVE_SIZES) * arguments.repeat
    with Progress(transient=True, disable=arguments.json or not sys.stderr.isatty()) as progress:
        task = progress.add_task("native", total=rounds)
        return measure_native(arguments, target, lambda: progress.advance(task))


def _round(bench: Bench, pids: dict[str, list[int]], series: Series) -> None:
    """Each series of the bench (baseline and broker in turn) once."""
    for name, load in bench.loads():
        meter = CpuMeter(pids)
        totals: Totals = uvloop.run(load())
        used = meter.stop()
        cpu = {role: used[role] for role in bench.roles}
        series.setdefault(name, []).append(_figures(totals, cpu, bench.bytes_of(totals)))


def _rows(bench: Bench, series: Series) -> list[dict[str, Any]]:
    baselines = {name: runs for name, runs in series.items() if name in bench.baselines.values()}
    rows = []
    for name, runs in series.items():
        row: dict[str, Any] = {"size": bench.size, "run": name}
        row |= {key: Figure([run[key] for run in runs]) for key in runs[0]}
        against = baselines.get(bench.baselines.get(name, ""))
        ratio = None
        if against:
            ratio = row["MB/s"].median / Figure([run["MB/s"] for run in against]).median
        row["of baseline"] = ratio
        rows.append({key: _jsonable(value) for key, value in row.items()})
    return rows


def _figures(totals: Totals, cpu: dict[str, float], moved: int) -> dict[str, float]:
    figures = {
        "requests/s": totals.per_second,
        "MB/s": moved / totals.seconds / 1e6,
        "p50 ms": totals.percentile_ms(0.5),
        "p99 ms": totals.percentile_ms(0.99),
    }
    for role, seconds in cpu.items():
        figures[f"{role} us/req"] = seconds / max(totals.requests, 1) * 1e6
    if cpu["worker"] > 0:
        figures["GB/s of worker CPU"] = moved / cpu["worker"] / 1e9
    else:
        figures["GB/s of worker CPU"] = 0.0
    return figures


def _jsonable(value: Any) -> Any:
    return value.to_json() if isinstance(value, Figure) else value


def _readable(row: dict[str, Any]) -> dict[str, str]:
    readable = {}
    for name, value in row.items():
        if name == "size":
            readable[name] = size_name(value)
        elif isinstance(value, dict):
            readable[name] = str(Figure([value["min"], value["median"], value["max"]]))
        elif isinstance(value, float):
            readable[name] = f"{value:.2f}"
        else:
            readable[name] = str(value or "")
    return readable
