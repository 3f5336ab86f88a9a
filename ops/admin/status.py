"""`moldau status`: what a running `serve` says of its processes and its store."""

import argparse
import os
import sys
from typing import Any

import msgspec

from broker.settings.loading import load_settings
from broker.settings.processes import ConfigError
from ops.serve.control import NotRunningError, ask_status
from ops.serve.runtime import control_socket, runtime_dir

DESCRIPTION = "Show the processes of a running broker, and its store."

EXAMPLES = """\
examples:
  moldau status                    the broker on port 9092, or where MOLDAU_PORT says
  moldau status --port 19092
  moldau status --json             for scripts

exit code: 0 it is running, 1 it is not, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("--port", metavar="PORT", help="bootstrap port of the broker (9092)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    try:
        port = load_settings({"port": arguments.port}, os.environ).port
    except ConfigError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 2
    directory = runtime_dir(os.environ)
    try:
        status = ask_status(control_socket(directory, port))
    except NotRunningError:
        print(
            f"moldau: no broker of user {os.getuid()} is running on port {port} "
            f"(asked in {directory}); start one with: moldau serve --port {port}",
            file=sys.stderr,
        )
        return 1
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    else:
        _print_tables(status)
    return 0


def _print_tables(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    processes = Table("process", "pid", "port", "state", "uptime", "restarts", "slots")
    for process in status["processes"]:
        name = process["role"]
        if name in ("worker", "router"):
            name += f" {process['index']}"
        processes.add_row(
            name,
            str(process["pid"] or "-"),
            str(process["port"] or "-"),
            process["state"],
            _duration(process["uptime_s"]),
            str(process["restarts"]),
            _slots(process["slots"]),
        )
    store = Table("store", "", show_header=False)
    for key, value in status["store"].items():
        store.add_row(key, str(value))
    console = Console()
    console.print(processes)
    console.print("store", style="bold")
    console.print(store)


def _slots(owned: list[int] | None) -> str:
    """The slots of a worker: all of them are in --json."""
    if not owned:
        return "-"
    first = ", ".join(str(number) for number in owned[:3])
    return first if len(owned) <= 3 else f"{first} … {owned[-1]} ({len(owned)})"


def _duration(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2])
