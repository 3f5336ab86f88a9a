"""`moldau top`: a live view of a running broker in a terminal.

It asks the processes over their unix sockets, as the HTTP process does, which need not run. It
works for the user that runs `serve`, on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from moldau.ops.command_line import discard_output, parse_duration, parsed_by, print_json
from moldau.ops.commands.status import local_port, not_running
from moldau.ops.commands.top_screen import print_overview, screen
from moldau.ops.http.collector import Collector
from moldau.ops.http.snapshot import usages
from moldau.ops.operations.top import Sampled, overview
from moldau.ops.serve.runtime import control_socket, router_socket, runtime_dir, worker_socket

DESCRIPTION = "Live view of a running broker: rates, processes, busiest topics, groups by lag."

EXAMPLES = """\
examples:
  moldau top                       the broker of this user and machine on port 9092; q ends it
  moldau top --interval 5s
  moldau top --once                two samples, an interval apart, as plain tables
  moldau top --once --json         the same for scripts, with all topics and groups
  moldau top --json                a line of JSON every interval

The loop lag is how late the timers of a process are: what its clients wait at least. Bytes out and
requests are the workers'. Without --port, it is the port of MOLDAU_BOOTSTRAP (HOST:PORT), else
MOLDAU_PORT, else 9092.

exit codes: 0 done, 1 no broker runs, 2 wrong usage
"""

SHORTEST_MS = 200

Show = Callable[[dict[str, Any] | None], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("--port", metavar="PORT", help="bootstrap port of the broker")
    parser.add_argument(
        "--interval", type=parsed_by(_interval), default=2000, metavar="TIME",
        help="between samples: 2s by default",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    try:
        port = local_port(arguments.port, os.environ)
    except ValueError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_run(arguments, port))
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        discard_output()
        return 1


def _interval(text: str) -> int:
    found = parse_duration(text)
    if found < SHORTEST_MS:
        raise ValueError(f"want an interval of {SHORTEST_MS}ms or more, got {text!r}")
    return found


async def _run(arguments: argparse.Namespace, port: int) -> int:
    interval_s = arguments.interval / 1000
    first = await sample(port)
    if first is None:
        print(not_running(runtime_dir(os.environ), port), file=sys.stderr)
        return 1
    if arguments.once or arguments.json or not Console().is_terminal:
        return await _print(arguments, port, first, interval_s)
    ended = asyncio.Event()
    with _on_q(ended.set), Live(Text("…"), screen=True, auto_refresh=False) as live:

        def show(found: dict[str, Any] | None) -> None:
            title = f"port {port}, every {interval_s:g} s; q ends it"
            shown: RenderableType = Text(f"moldau top, {title}\n\nno broker answers")
            if found is not None:
                shown = screen(found, title, live.console.height)
            live.update(shown, refresh=True)

        await _follow(port, first, interval_s, show, ended)
    return 0


async def _print(
    arguments: argparse.Namespace, port: int, first: Sampled, interval_s: float
) -> int:
    before = first
    while True:
        await asyncio.sleep(interval_s)
        after = await sample(port)
        if after is None:
            print(not_running(runtime_dir(os.environ), port), file=sys.stderr)
            return 1
        found = overview(before, after)
        if not arguments.json:
            print_overview(found)
        elif arguments.once:
            print_json(found)
        else:
            print(json.dumps(found), flush=True)
        if arguments.once or not arguments.json:
            return 0
        before = after


async def _follow(
    port: int, first: Sampled, interval_s: float, show: Show, ended: asyncio.Event
) -> None:
    """Refresh until `ended`. A broker that is restarted is shown again when it answers."""
    before: Sampled | None = first
    show(overview(first, first))
    while True:
        try:
            async with asyncio.timeout(interval_s):
                await ended.wait()
                return
        except TimeoutError:
            after = await sample(port)
            show(None if after is None else overview(before or after, after))
            before = after


async def sample(port: int) -> Sampled | None:
    """None: the supervisor does not answer."""
    directory = runtime_dir(os.environ)
    control = str(control_socket(directory, port))
    status = await Collector(control, [], []).status()
    if status is None:
        return None
    processes = status.processes
    workers = [each.index for each in processes if each.role == "worker"]
    routers = [each.index for each in processes if each.role == "router"]
    collector = Collector(
        control,
        [str(worker_socket(directory, port, index)) for index in workers],
        [str(router_socket(directory, port, index)) for index in routers],
    )
    snapshot = await collector.collect()
    return Sampled(time.monotonic(), snapshot, usages(snapshot.status))


@contextmanager
def _on_q(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` when q is pressed, if somebody can."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        typed = os.read(descriptor, 64)
        if b"q" in typed or not typed:
            end()

    kept = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)
