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
connections  many that only wait, and requests among them; baseline: a bare uvloop server
native   topics with an entry for each record: produce, and fetch by a group's member; baselines:
         pipelined XADD of the same fields, and XREADGROUP with the same COUNT

all      each of these in small, one after the other
growth   how cost grows with partitions, connections, members, groups, batch size and the log:
         a table and plots

Every run is repeated, baseline and broker in turn, so that what else the machine does hits both;
reported are medians and ranges. CPU is that of the processes, by their own clocks; "broker" is all
of a broker's processes together. With --bootstrap any broker that speaks Kafka's protocol is
measured, and with --pid its CPU and memory; what cannot be seen of one that is not Moldau on this
machine is n/a.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress

from broker.wire.primitives import MalformedMessage
from loadtest.bench import growth
from loadtest.bench.compare import NotAResult, compare, readable
from loadtest.bench.groups import allow_connections
from loadtest.bench.harness import growth_report
from loadtest.bench.harness.client import RequestFailed
from loadtest.bench.harness.measure import Figure, show, size_name, table
from loadtest.bench.harness.target import Target, TargetError, await_ready, own, running
from loadtest.bench.runs import BENCHES, RUNS, options_of, rounds_of, scaling
from loadtest.bench.runs import run as run_bench

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
  moldau bench connections --count 5000         5,000 connections
  moldau bench native --size 100                records of 100 bytes, shared with Redis
  moldau bench all --json > here.json           everything in small
  moldau bench all --bootstrap 127.0.0.1:29092 --pid 4711 --json > there.json
  moldau bench --compare there.json here.json   the ratios
  moldau bench growth --quick                   loadtest/growth/growth.png, .svg and .md
"""

# What `all` does with a broker of its own, and with one of others.
EVERYTHING = ["produce", "fetch", "latency", "groups", "connections", "router", "scaling", "native"]
ANYBODYS = ["produce", "fetch", "latency", "groups", "connections"]
UNKNOWN = "n/a"
SMALL: dict[str, dict[str, Any]] = {
    "produce": {"size": [1024, 65536]},
    "fetch": {"size": [65536]},
    "groups": {"members": [10, 100]},
    "connections": {"count": [10, 1000]},
    "native": {"size": [100]},
}


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: more than 0")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.epilog = EPILOG
    choices = [*BENCHES, "scaling", *RUNS, "all", "growth"]
    parser.add_argument("what", nargs="?", choices=choices, help="see above")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two files of --json")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="measure a broker that runs")
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        help="with --bootstrap: the broker's process, whose CPU and memory to show, with those "
        "of its children; may be repeated",
    )
    parser.add_argument("--workers", type=_count, default=1, help="of the broker's own (default 1)")
    parser.add_argument("--size", type=_count, action="append", help="batch size; may be repeated")
    parser.add_argument(
        "--connections", type=_count, default=8, help="of one run; scaling: for each worker"
    )
    parser.add_argument(
        "--count", type=_count, action="append", help="connections: how many; may be repeated"
    )
    parser.add_argument("--in-flight", type=_count, default=4, help="requests out per connection")
    parser.add_argument("--partitions", type=_count, default=8)
    parser.add_argument("--seconds", type=_positive, default=3.0, help="per run")
    parser.add_argument("--repeat", type=_count, default=3)
    parser.add_argument(
        "--log-bytes", type=_count, default=256 << 20, help="fetch: log to write first"
    )
    parser.add_argument(
        "--tail-cache-bytes", type=_count, default=128 << 20, help="of the own broker"
    )
    parser.add_argument("--rate", type=_positive, default=100.0, help="latency: records per second")
    parser.add_argument("--members", type=_count, action="append", help="groups: of one group")
    parser.add_argument("--groups", type=_count, default=1, help="groups: how many, with --members")
    parser.add_argument("--store-fsync", choices=["everysec", "always", "no"], default="everysec")
    parser.add_argument("--quick", action="store_true", help="growth: few points, short runs")
    parser.add_argument(
        "--longest-log", type=_count, default=10**9, help="growth: bytes; as much memory is used"
    )
    parser.add_argument("--out", default=growth.DIRECTORY, help="growth: where the plots go")
    parser.add_argument("--json", action="store_true", help="figures as JSON on standard output")


@contextmanager
def _target(arguments: argparse.Namespace, bench: str) -> Iterator[Target]:
    allow_connections()
    if arguments.bootstrap:
        target = running(arguments.bootstrap, arguments.pid or ())
        await_ready(target, bench)
        yield target
        return
    with own(arguments.workers, options_of(arguments)) as target:
        yield target


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.compare:
            return _compare(arguments)
        if arguments.pid and not arguments.bootstrap:
            raise TargetError("--pid is for a broker that runs already: say where, --bootstrap")
        if arguments.what is None:
            print("moldau bench: what? `moldau bench --help` lists it", file=sys.stderr)
            return 2
        if arguments.what == "growth":
            return _growth(arguments)
        reports = _reports(arguments)
    except (TargetError, RequestFailed, NotAResult, MalformedMessage, OSError) as fault:
        where = f" ({arguments.bootstrap})" if arguments.bootstrap else ""
        told = str(fault) or type(fault).__name__  # a TimeoutError says no more
        print(f"moldau bench: {told}{where}", file=sys.stderr)
        return 1
    if not arguments.json:
        for report in reports:
            rows = _without_unknown([_readable(row) for row in report["rows"]])
            show(table(f"moldau bench {report['bench']}", rows))
    elif arguments.what == "all":
        print(json.dumps({"bench": "all", "benches": reports}, indent=2))
    else:
        print(json.dumps(reports[0], indent=2))
    return 0


def _reports(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    names = [arguments.what]
    if arguments.what == "all":
        names = ANYBODYS if arguments.bootstrap else EVERYTHING
    settings = {
        name: argparse.Namespace(
            **{**vars(arguments), **(SMALL.get(name, {}) if arguments.what == "all" else {})}
        )
        for name in names
    }
    total = sum(rounds_of(settings[name], name) for name in names)
    reports = []
    with _progress(arguments, total) as advance:
        for name in names:
            if name == "scaling":
                rows = scaling(settings[name], advance)
            else:  # a broker for each: what one leaves behind is not the next one's
                with _target(arguments, name) as target:
                    rows = run_bench(name, settings[name], target, advance)
            reports.append({"bench": name, "rows": rows})
    return reports


@contextmanager
def _progress(arguments: argparse.Namespace, total: int) -> Iterator[Callable[[], None]]:
    hidden = arguments.json or not sys.stderr.isatty()
    with Progress(transient=True, disable=hidden) as progress:
        task = progress.add_task(f"bench {arguments.what}", total=total)
        yield lambda: progress.advance(task)


def _compare(arguments: argparse.Namespace) -> int:
    rows = compare(*arguments.compare)
    if arguments.json:
        print(json.dumps({"bench": "compare", "rows": rows}, indent=2))
    else:
        first, second = arguments.compare
        show(table(f"A = {first}, B = {second}", [readable(row) for row in rows]))
    return 0


def _growth(arguments: argparse.Namespace) -> int:
    if arguments.bootstrap:
        raise TargetError("growth starts a broker of its own, not with --bootstrap")
    plan = growth.plan(arguments.quick, arguments.longest_log)
    with _progress(arguments, sum(len(series.values) for series in plan)) as advance:
        rows = growth.measure(plan, arguments, advance)
    files = [
        *growth_report.plot(rows, arguments.out),
        growth_report.write_table(rows, arguments.out),
    ]
    if arguments.json:
        print(json.dumps({"bench": "growth", "rows": rows}, indent=2))
    else:
        show(table("moldau bench growth", [_readable(growth_report.shown(row)) for row in rows]))
        print("\n".join(files))
    return 0


def _without_unknown(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without the columns that have no figure at all, such as the workers of another's broker."""
    known = [name for name in rows[0] if any(row[name] != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


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
            readable[name] = UNKNOWN if value is None else str(value)
    return readable
