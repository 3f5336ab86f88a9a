"""`moldau status`: the processes and the store of a running `moldau serve`."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moldau.broker.settings.loading import load_settings
from moldau.ops.client import parse_addresses
from moldau.ops.command_line import (
    BOOTSTRAP_ENV,
    duration_text,
    print_facts,
    print_json,
    print_table,
    size_text,
)
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import control_socket, runtime_dir

DESCRIPTION = "Show the processes of a running broker, and its store."

EXAMPLES = """\
examples:
  moldau status                    the broker of this user and machine on port 9092
  moldau status --port 19092
  moldau status --json             for scripts

Without --port, it is the port of MOLDAU_BOOTSTRAP (HOST:PORT), else MOLDAU_PORT, else 9092.

exit codes: 0 it is running, 1 it is not, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.add_argument("--port", metavar="PORT", help="bootstrap port of the broker")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    try:
        port = local_port(arguments.port, os.environ)
    except ValueError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 2
    directory = runtime_dir(os.environ)
    try:
        status = ask_status(control_socket(directory, port))
    except NotRunningError:
        print(not_running(directory, port), file=sys.stderr)
        return 1
    if arguments.json:
        print_json(status)
    else:
        _print_tables(status)
    return 0


def local_port(flag: str | None, env: Mapping[str, str]) -> int:
    """The bootstrap port of the broker that is meant. Raises ValueError."""
    if flag is None and (bootstrap := env.get(BOOTSTRAP_ENV)):
        try:
            return parse_addresses(bootstrap)[0][1]
        except ValueError as error:
            raise ValueError(f"{BOOTSTRAP_ENV} {error}") from None
    return load_settings({"port": flag}, env).port


def not_running(directory: Path, port: int) -> str:
    return (
        f"moldau: no broker of user {os.getuid()} is running on port {port} "
        f"(looked in {directory}); start one with: moldau serve --port {port}"
    )


def _print_tables(status: dict[str, Any]) -> None:
    rows = []
    for process in status["processes"]:
        name = process["role"]
        if name in ("worker", "router"):
            name += f" {process['index']}"
        rows.append(
            (
                name,
                process["pid"],
                process["port"],
                process["state"],
                duration_text(process["uptime_s"]),
                process["restarts"],
                _slots(process["slots"]),
            )
        )
    print_table(("process", "pid", "port", "state", "uptime", "restarts", "slots"), rows)
    if "lease" in status:
        print("\nlease of the store")
        print_facts(_lease(status["lease"]))
    print("\nstore")
    print_facts({**status["store"], **_disk(status["store"])})


def _lease(lease: dict[str, Any]) -> dict[str, str]:
    """Who serves an external store, in words."""
    role, holder = lease["role"], lease["holder"]
    since = duration_text(max(time.time() - lease["since"], 0))
    if role == "holder":
        left = lease["left_s"]
        words = f"{left:.1f} s without a renewal" if left else "OVER: clients are not served"
        return {"role": f"holder for {since}", "lasts": words}
    served = "nobody, as far as it is known"
    if holder is not None:
        served_for = duration_text(max(time.time() - holder["since"], 0))
        who = f"process {holder['pid']} on {holder['host']}, port {holder['port']}"
        served = f"{who}, for {served_for}"
    return {"role": f"standby for {since}", "served by": served}


def _disk(store: dict[str, Any]) -> dict[str, str]:
    """The disk of the embedded store, in words."""
    disk = store.get("disk")
    if not disk:
        return {}
    text = f"{size_text(disk['free_bytes'])} of {size_text(disk['total_bytes'])} free"
    if disk["last_write_failed"]:
        text += "; A WRITE HAS FAILED, producers are refused"
    elif disk["refuses_writes"]:
        text += "; NEARLY FULL, producers are refused"
    return {"disk": f"{text} (the mark is {size_text(disk['min_free_bytes'])})"}


def _slots(owned: list[int] | None) -> str | None:
    """The slots of groups a worker owns, shortened: all of them are in --json."""
    if not owned:
        return None
    first = ", ".join(str(number) for number in owned[:3])
    return first if len(owned) <= 3 else f"{first} … {owned[-1]} ({len(owned)})"
