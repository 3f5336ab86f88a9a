"""`moldau mirror`: topics of a Kafka cluster here, at their own offsets, until the cut-over."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live

from moldau.ops.client import (
    ClientError,
    Cluster,
    InvalidSecurity,
    parse_addresses,
    read_client_settings,
)
from moldau.ops.command_line import (
    add_bootstrap,
    complain,
    discard_output,
    open_cluster,
    parsed_by,
    positive,
    printable,
    run_chosen,
)
from moldau.ops.commands.mirror_screen import lines_of, screen
from moldau.ops.mirror.mirror import Mirror
from moldau.ops.mirror.plan import parse_pattern
from moldau.ops.mirror.report import Report
from moldau.ops.mirror.topics import REFUSED

FROM_ENV = "MOLDAU_MIRROR_FROM"
FROM_CONFIG_ENV = "MOLDAU_MIRROR_FROM_COMMAND_CONFIG"
TICK_S = 0.5
LINE_EVERY_S = 10.0  # where there is no terminal
JSON_EVERY_S = 1.0
MAX_THREADS = 64

DESCRIPTION = """\
Mirror topics of a Kafka cluster (3.2 or later, or another Moldau) into this Moldau.

Batches are copied as they are and keep their offsets, timestamps, headers, producers and
transactions. So committed offsets are copied as they are too, and consumers go on where they were.
Topics are made with the partitions and the configuration that they have at the source, and follow
when these change; ACLs that are missing are made. Clients may read mirrored topics here, and not
write them before the cut-over.
"""

EXAMPLES = """\
examples:
  moldau mirror --from kafka:9092 --topics 'shop\\..*'
                                   copies what is there, and goes on until it is stopped (Ctrl-C);
                                   started again, it goes on where it was
  moldau mirror --from kafka:9092 --topics 'shop\\..*' --once
                                   until everything is here that the source has
  moldau mirror --from kafka:9092 --topics 'shop\\..*' --cut-over
                                   after the producers were stopped: waits until the lag is 0,
                                   copies the last offsets, and lets clients write here
  moldau mirror --from kafka:9093 --from-command-config kafka.properties --topics '.*'
                                   TLS and a login at the source, as in Java's client.properties

TOPICS and GROUPS are regular expressions that have to match a whole name. A topic that exists here
with other offsets is refused, and the others go on. Here the mirror needs ALTER and CLUSTER_ACTION
on the cluster, and to create topics; whoever runs the broker may do everything on its machine. At
the source it needs to describe and read topics and groups, and to describe the cluster for ACLs.

exit codes: 0 done, or stopped; 1 a topic was refused, or the source cannot be asked; 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.set_defaults(action=_run, action_parser=parser)
    parser.add_argument(
        "--from", dest="source", metavar="HOST:PORT", default=os.environ.get(FROM_ENV),
        help=f"address of the source, or several separated by commas (${FROM_ENV})",
    )  # fmt: skip
    parser.add_argument(
        "--from-command-config", metavar="FILE", default=os.environ.get(FROM_CONFIG_ENV),
        help=f"client settings for TLS and a login at the source (${FROM_CONFIG_ENV})",
    )  # fmt: skip
    parser.add_argument(
        "--topics", metavar="PATTERN", type=parsed_by(parse_pattern), required=True,
        help="which topics: a regular expression",
    )  # fmt: skip
    parser.add_argument(
        "--groups", metavar="PATTERN", type=parsed_by(parse_pattern), default=re.compile(".*"),
        help="the committed offsets of which groups: a regular expression; all by default",
    )  # fmt: skip
    parser.add_argument("--no-groups", action="store_true", help="copy no committed offsets")
    parser.add_argument("--no-acls", action="store_true", help="copy no ACLs")
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--once", action="store_true", help="end as soon as everything is here that the source has"
    )
    until.add_argument(
        "--cut-over", action="store_true",
        help="wait until the lag is 0 and nothing is written at the source any more, then make "
        "the topics writable here and end",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=positive, default=2, metavar="N", help="threads that copy; 2 by default"
    )
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON every second, and one at the end"
    )
    add_bootstrap(parser)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.source:
        arguments.action_parser.error(f"--from or {FROM_ENV} is required")
    if arguments.threads > MAX_THREADS:
        arguments.action_parser.error(f"--threads: at most {MAX_THREADS}")
    return run_chosen(arguments, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    open_source = _source(arguments)
    with open_source() as source:
        source.metadata(())  # who cannot be asked at all is a mistake, and nothing to wait for
    with open_cluster(arguments) as target:
        target.metadata(())
    mirror = Mirror(
        open_source,
        lambda: open_cluster(arguments),
        arguments.topics,
        None if arguments.no_groups else arguments.groups,
        acls=not arguments.no_acls,
        threads=arguments.threads,
    )
    try:
        with _stopping() as stopped:
            return _follow(arguments, mirror, stopped)
    except BrokenPipeError:
        discard_output()
        return 1
    finally:
        mirror.close()


def _source(arguments: argparse.Namespace) -> Callable[[], Cluster]:
    """Raises ClientError."""
    try:
        addresses = parse_addresses(arguments.source)
    except ValueError as error:
        arguments.action_parser.error(f"--from {error}")
    path = arguments.from_command_config
    try:
        settings = read_client_settings(path) if path else None
    except InvalidSecurity as error:
        raise ClientError(f"--from-command-config {error}") from None

    def opened() -> Cluster:
        if settings is None:
            return Cluster(addresses, client_id="moldau-mirror")
        return Cluster(addresses, security=settings.security, client_id="moldau-mirror")

    return opened


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM; a second one ends the process."""
    stopped = threading.Event()
    before: dict[int, Any] = {}

    def stop(number: int, _: object) -> None:
        stopped.set()
        signal.signal(number, before[number])

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, stop)
    try:
        yield stopped
    finally:
        for stopping, handler in before.items():
            signal.signal(stopping, handler)


def _follow(arguments: argparse.Namespace, mirror: Mirror, stopped: threading.Event) -> int:
    mirror.start()
    began = time.monotonic()
    is_done = False
    with _shown(arguments) as show:
        while not stopped.is_set():
            mirror.tick()
            show(mirror.report(), time.monotonic() - began)
            if mirror.is_over:
                break
            if arguments.once and mirror.try_end():
                is_done = True
                break
            if arguments.cut_over and mirror.try_cut_over():
                is_done = True
                break
            stopped.wait(TICK_S)
    return _conclude(arguments, mirror, is_done=is_done)


def _conclude(arguments: argparse.Namespace, mirror: Mirror, *, is_done: bool) -> int:
    report = mirror.report()
    refused = [one for one in report.topics if one.state == REFUSED]
    if arguments.json:
        document = msgspec.to_builtins(report)
        document["done"] = is_done
        document["aborted_transactions"] = mirror.aborted
        print(json.dumps(document), flush=True)
    elif not report.topics:
        print("no topic of the source matches --topics")
    else:
        for line in lines_of(report):
            print(line)
        if is_done and arguments.cut_over:
            _say_what_next(mirror)
    for one in refused:
        complain(ClientError(f"topic {one.topic} is not mirrored: {one.why}"))
    return 1 if refused or not report.topics else 0


def _say_what_next(mirror: Mirror) -> None:
    if mirror.aborted:
        print(f"{mirror.aborted} transactions that were open have been aborted here.")
    print(
        "The topics can be written here now. Start their producers with this Moldau as "
        "bootstrap.servers, and the\nconsumers that are not here yet: they go on at the offsets "
        "that they had committed.\n`moldau groups describe GROUP` shows their lag. What is written "
        "to the source from now on does not come here."
    )


# --- showing ---

Show = Callable[[Report, float], None]


@contextmanager
def _shown(arguments: argparse.Namespace) -> Iterator[Show]:
    """Lines of JSON, a live view on a terminal, or a line now and then."""
    console = Console()
    if arguments.json:
        yield _every(JSON_EVERY_S, lambda report, _: _print_json(report))
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda report, elapsed: live.update(
                screen(report, elapsed, console.height), refresh=True
            )
    else:
        yield _every(LINE_EVERY_S, _print_line, first_after_s=LINE_EVERY_S)


def _every(seconds: float, show: Show, *, first_after_s: float = 0.0) -> Show:
    shown_at = [time.monotonic() - seconds + first_after_s]

    def shown(report: Report, elapsed: float) -> None:
        if time.monotonic() - shown_at[0] >= seconds:
            shown_at[0] = time.monotonic()
            show(report, elapsed)

    return shown


def _print_json(report: Report) -> None:
    print(json.dumps(msgspec.to_builtins(report)), flush=True)


def _print_line(report: Report, elapsed: float) -> None:
    lag = "not known yet" if report.lag is None else f"{report.lag:,}"
    rate = report.records / elapsed if elapsed > 0 else 0.0
    print(f"{report.records:,} records ({rate:,.0f}/s), lag {lag}", flush=True)
    if report.trouble:
        print(f"moldau: {printable(report.trouble)}", file=sys.stderr, flush=True)
