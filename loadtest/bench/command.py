"""`moldau bench`: how fast a broker is on this machine, beside a baseline measured in the same run.

The benchmarks are in the table of benchmarks.py; here are their options and how results are shown.
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

from moldau.broker.wire.primitives import MalformedMessage
from moldau.loadtest.bench import growth
from moldau.loadtest.bench.benchmarks import BENCHMARKS
from moldau.loadtest.bench.compare import NotAResult, compare, readable
from moldau.loadtest.bench.harness.benchmark import Benchmark, Row
from moldau.loadtest.bench.harness.client import RequestFailed
from moldau.loadtest.bench.harness.figures import Figure, show, size_name, table
from moldau.loadtest.bench.harness.target import TargetError
from moldau.ops.client import InvalidSecurity
from moldau.ops.command_line import add_command_config

ALL = "all"
UNKNOWN = "n/a"

DESCRIPTION = """\
How fast a broker is on this machine, beside a baseline measured in the same run.

{benchmarks}

Every run is repeated, baseline and broker in turn, so that whatever else the machine does affects
both; medians and ranges are reported. CPU is that of the processes, by their own clocks; "broker"
is all processes of a broker together. With --bootstrap any broker that speaks Kafka's protocol is
measured, and with --pid its CPU and memory; what cannot be measured is n/a.
"""

EPILOG = """\
examples:
  moldau bench produce                          a broker of its own, all sizes
  moldau bench produce --size 16384 --repeat 5  one size, five times
  moldau bench fetch --bootstrap 127.0.0.1:9092 a running broker
  moldau bench catchup --workers 2 --log-bytes 1000000000    six partitions, from start to end
  moldau bench produce --secure                 with TLS, a login and ACLs
  moldau bench router --connections 64 --in-flight 1    the second hop, many clients
  moldau bench scaling --in-flight 1            1, 2 and 4 workers
  moldau bench latency --rate 1000              open loop, 1,000 records a second
  moldau bench groups                           one group of 10, 100, 1,000; 2,000 groups of 2
  moldau bench groups --members 2 --groups 500  500 groups of 2 members
  moldau bench groups --protocol both --beside 127.0.0.1:29092 --beside-pid 4711
                                                both protocols, here and in another broker
  moldau bench transactions --connections 16    16 producers in parallel, and one alone
  moldau bench connections --count 5000         5,000 connections
  moldau bench native --size 100                records of 100 bytes, shared with Redis
  moldau bench all --json > here.json           all of them, with smaller settings
  moldau bench all --bootstrap 127.0.0.1:29092 --pid 4711 --json > there.json
  moldau bench --compare there.json here.json   the ratios
  moldau bench growth --quick                   loadtest/growth/growth.png, .svg and .md
"""


# --- the command line ---


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


def description() -> str:
    lines = []
    for benchmark in BENCHMARKS.values():
        lines.append(f"{benchmark.name:12} {benchmark.summary}")
        if benchmark.baseline:
            lines.append(f"{'':12} baseline: {benchmark.baseline}")
    included = ", ".join(name for name, benchmark in BENCHMARKS.items() if benchmark.in_all)
    lines += ["", f"{ALL:12} {included}, with smaller settings"]
    return DESCRIPTION.format(benchmarks="\n".join(lines))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = description()
    parser.epilog = EPILOG
    parser.add_argument("what", nargs="?", choices=[*BENCHMARKS, ALL], help="see above")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two files of --json")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="measure a running broker")
    add_command_config(parser)
    parser.add_argument(
        "--secure",
        action="store_true",
        help="start the broker with TLS and a login (serve --secure), and use both",
    )
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        help="with --bootstrap: the broker's process; its CPU and memory are shown, with those "
        "of its descendants; may be repeated",
    )
    parser.add_argument(
        "--workers", type=_count, default=1, help="of the broker that is started (default 1)"
    )
    parser.add_argument("--size", type=_count, action="append", help="batch size; may be repeated")
    parser.add_argument(
        "--connections", type=_count, default=8, help="of one run; scaling: for each worker"
    )
    parser.add_argument(
        "--count", type=_count, action="append", help="connections: how many; may be repeated"
    )
    parser.add_argument("--in-flight", type=_count, default=4, help="requests per connection")
    parser.add_argument("--partitions", type=_count, default=8)
    parser.add_argument("--seconds", type=_positive, default=3.0, help="per run")
    parser.add_argument("--repeat", type=_count, default=3)
    parser.add_argument(
        "--log-bytes", type=_count, default=256 << 20, help="fetch, catchup: what to write first"
    )
    parser.add_argument(
        "--tail-cache-bytes",
        type=_count,
        default=128 << 20,
        help="of the broker that is started",
    )
    parser.add_argument("--rate", type=_positive, default=100.0, help="latency: records per second")
    parser.add_argument("--members", type=_count, action="append", help="groups: of one group")
    parser.add_argument("--groups", type=_count, default=1, help="groups: how many, with --members")
    parser.add_argument(
        "--protocol",
        choices=["classic", "consumer", "both"],
        default="classic",
        help="groups: consumer is KIP-848; both: in turn",
    )
    parser.add_argument(
        "--beside", metavar="HOST:PORT", help="groups: another broker, measured in turn"
    )
    parser.add_argument(
        "--beside-pid", type=int, action="append", help="its process, as --pid; may be repeated"
    )
    parser.add_argument("--store-fsync", choices=["everysec", "always", "no"], default="everysec")
    parser.add_argument("--quick", action="store_true", help="growth: few points, short runs")
    parser.add_argument(
        "--longest-log", type=_count, default=10**9, help="growth: bytes; needs as much memory"
    )
    parser.add_argument("--out", default=growth.DIRECTORY, help="growth: directory of the plots")
    parser.add_argument("--json", action="store_true", help="figures as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.compare:
            return _compare(arguments)
        if arguments.pid and not arguments.bootstrap:
            raise TargetError("--pid is for a running broker: add its address, --bootstrap")
        if arguments.command_config and not arguments.bootstrap:
            raise TargetError("--command-config is for a running broker: add --bootstrap")
        if arguments.secure and arguments.bootstrap:
            raise TargetError("--secure is for a broker of its own: leave out --bootstrap")
        if arguments.beside and arguments.what != "groups":
            raise TargetError("--beside is for groups")
        if arguments.beside_pid and not arguments.beside:
            raise TargetError("--beside-pid is for another broker: add its address, --beside")
        if arguments.what is None:
            print("moldau bench: which one? `moldau bench --help` lists them", file=sys.stderr)
            return 2
        reports, files = _measure(arguments)
    except (
        TargetError,
        RequestFailed,
        NotAResult,
        InvalidSecurity,
        MalformedMessage,
        OSError,
    ) as error:
        where = f" ({arguments.bootstrap})" if arguments.bootstrap else ""
        message = str(error) or type(error).__name__  # a TimeoutError may have no text
        print(f"moldau bench: {message}{where}", file=sys.stderr)
        return 1
    if not arguments.json:
        for report in reports:
            shown = BENCHMARKS[report["bench"]].shown
            rows = _without_unknown([_readable(shown(row)) for row in report["rows"]])
            show(table(f"moldau bench {report['bench']}", rows))
        for file in files:
            print(file)
    elif arguments.what == ALL:
        print(json.dumps({"bench": ALL, "benches": reports}, indent=2))
    else:
        print(json.dumps(reports[0], indent=2))
    return 0


# --- running ---


def _measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The reports, and the files that were written."""
    chosen = [(benchmark, _options(arguments, benchmark)) for benchmark in _chosen(arguments)]
    total = sum(benchmark.rounds(options) for benchmark, options in chosen)
    reports: list[dict[str, Any]] = []
    files: list[str] = []
    with _progress(arguments, total) as advance:
        for benchmark, options in chosen:  # each with a broker of its own
            rows = benchmark.run(options, advance)
            files += benchmark.save(rows, options)
            reports.append({"bench": benchmark.name, "rows": rows})
    return reports, files


def _chosen(arguments: argparse.Namespace) -> list[Benchmark]:
    if arguments.what != ALL:
        return [BENCHMARKS[arguments.what]]
    return [
        benchmark
        for benchmark in BENCHMARKS.values()
        if benchmark.in_all and (benchmark.any_broker or not arguments.bootstrap)
    ]


def _options(arguments: argparse.Namespace, benchmark: Benchmark) -> argparse.Namespace:
    small = benchmark.small if arguments.what == ALL else {}
    return argparse.Namespace(**{**vars(arguments), **small})


@contextmanager
def _progress(arguments: argparse.Namespace, total: int) -> Iterator[Callable[[], None]]:
    is_hidden = arguments.json or not sys.stderr.isatty()
    with Progress(transient=True, disable=is_hidden) as progress:
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


# --- showing ---


def _without_unknown(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Drop columns without a figure, such as the workers of another broker."""
    known = [name for name in rows[0] if any(row[name] != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def _readable(row: Row) -> dict[str, str]:
    shown = {}
    for name, value in row.items():
        if name == "size":
            shown[name] = size_name(value)
        elif isinstance(value, dict):
            shown[name] = str(Figure([value["min"], value["median"], value["max"]]))
        elif isinstance(value, float):
            shown[name] = f"{value:.2f}"
        else:
            shown[name] = UNKNOWN if value is None else str(value)
    return shown
