"""Shared by subcommands with actions: options, tables, errors as exit codes.

Tables are for people: rich's on a terminal, plain columns when piped, where nothing is cut off.
Scripts use --json. Nothing here knows what is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moldau.ops.client import (
    ClientError,
    ClientSettings,
    Cluster,
    InvalidSecurity,
    parse_addresses,
    read_client_settings,
)

BOOTSTRAP_ENV = "MOLDAU_BOOTSTRAP"
COMMAND_CONFIG_ENV = "MOLDAU_COMMAND_CONFIG"
PORT_ENV = "MOLDAU_PORT"  # of `serve`: where a broker with the same environment listens
DEFAULT_PORT = "9092"
EXIT_CODES = "exit codes: 0 done, 1 not done (the message names the cause), 2 wrong usage"

_MINUTE_MS = 60_000
_MILLISECONDS = {
    "ms": 1,
    "s": 1000,
    "m": _MINUTE_MS,
    "min": _MINUTE_MS,
    "h": 60 * _MINUTE_MS,
    "d": 24 * 60 * _MINUTE_MS,
}

T = TypeVar("T")
U = TypeVar("U")

Cell = str | int | None
Action = Callable[[Cluster, argparse.Namespace], int]
AddAction = Callable[[str, str, str, Action], argparse.ArgumentParser]
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_actions(parser: argparse.ArgumentParser, description: str, examples: str) -> AddAction:
    """Begin a command whose actions ask a broker: `add(name, summary, help, action) -> parser`.

    `run_action` runs the one that was chosen.
    """
    actions = begin_actions(parser, description, examples)

    def add(name: str, summary: str, text: str, action: Action) -> argparse.ArgumentParser:
        made = add_action(actions, name, summary, text, action)
        add_bootstrap(made)
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    return add


def begin_actions(parser: argparse.ArgumentParser, description: str, examples: str) -> Actions:
    """Begin a command with other actions: `add_action` adds them, `run_chosen` runs one."""
    parser.description = description
    parser.epilog = examples
    parser.set_defaults(action=None, action_parser=parser)
    return parser.add_subparsers(title="actions", metavar="ACTION")


def add_action(
    actions: Actions, name: str, summary: str, text: str, action: Callable[..., int]
) -> argparse.ArgumentParser:
    made = actions.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"{text}\n{EXIT_CODES}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(action=action, action_parser=made)
    return made


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    """Which broker is asked, and as whom; `bootstrap_of` and `client_settings` read it."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"address of the broker, or several separated by commas "
        f"(${BOOTSTRAP_ENV}, else the broker of this machine)",
    )
    which.add_argument(
        "--port",
        type=positive,
        metavar="PORT",
        help=f"the broker of this machine with this bootstrap port (${PORT_ENV}, else 9092)",
    )
    add_command_config(parser)


def add_command_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="client settings for TLS and a login: security.protocol, sasl.* and ssl.* "
        f"as in Java's client.properties or librdkafka (${COMMAND_CONFIG_ENV}); "
        "the user that runs the broker needs none on its machine",
    )


def client_settings(arguments: argparse.Namespace) -> ClientSettings:
    """The settings in --command-config. Raises ClientError."""
    path = arguments.command_config or os.environ.get(COMMAND_CONFIG_ENV)
    if not path:
        return ClientSettings()
    try:
        return read_client_settings(path)
    except InvalidSecurity as error:
        raise ClientError(f"--command-config {error}") from None


def bootstrap_of(arguments: argparse.Namespace, settings: ClientSettings | None = None) -> str:
    """HOST:PORT, or several of them, as given."""
    named = named_bootstrap(arguments, settings or ClientSettings())
    return named or f"127.0.0.1:{arguments.port or os.environ.get(PORT_ENV) or DEFAULT_PORT}"


def named_bootstrap(arguments: argparse.Namespace, settings: ClientSettings) -> str | None:
    """None: it is the broker of this machine."""
    if arguments.port:
        return None
    given: str | None = arguments.bootstrap or os.environ.get(BOOTSTRAP_ENV)
    return given or settings.bootstrap


def positive(text: str) -> int:
    """Parse a number from 1 on, for argparse."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number < 1 << 31:
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return number


def parsed_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap `parse` for argparse, which would hide the text of a ValueError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def choice_of(names: Sequence[str], kind: str) -> Callable[[str], str]:
    """A parser of one of these names, in upper or lower case."""
    by_name = {name.lower(): name for name in names}

    def parse(text: str) -> str:
        if text.lower() not in by_name:
            raise ValueError(f"there is no {kind} {text}: choose from {', '.join(names)}")
        return by_name[text.lower()]

    return parsed_by(parse)


def parse_duration(text: str) -> int:
    """Milliseconds of `90s`, `15min`, `2h`. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,9}) *([a-z]+)", text.strip())
    if found is None or found[2] not in _MILLISECONDS:
        raise ValueError(f"want a duration such as 500ms, 90s, 15min, 2h or 1d, got {text!r}")
    return int(found[1]) * _MILLISECONDS[found[2]]


def run_action(arguments: argparse.Namespace) -> int:
    """Run the chosen action with the broker it asks."""

    def ask() -> int:
        try:
            with open_cluster(arguments) as cluster:
                code: int = arguments.action(cluster, arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            return 1
        return code

    return run_chosen(arguments, ask)


def open_cluster(arguments: argparse.Namespace) -> Cluster:
    """The broker to ask: on this machine over its unix sockets, unless an address is named or
    somebody else's login. Raises ClientError."""
    settings = client_settings(arguments)
    try:
        addresses = parse_addresses(bootstrap_of(arguments, settings))
    except ValueError as error:
        arguments.action_parser.error(f"--bootstrap {error}")
    if settings == ClientSettings() and named_bootstrap(arguments, settings) is None:
        # Imported here: not every command asks a broker of this machine.
        from moldau.ops.local_broker import find_local_broker

        return Cluster(addresses, local=find_local_broker(addresses[0][1]))
    return Cluster(addresses, security=settings.security)


def run_chosen(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    """Do the work of the chosen action; one line on standard error when it fails."""
    if arguments.action is None:
        arguments.action_parser.print_help()
        return 2
    try:
        return work()
    except ClientError as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        print("\nmoldau: interrupted", file=sys.stderr)
        return 1


def try_each(items: Iterable[T], work: Callable[[T], U]) -> list[U]:
    """The results; for an item that fails the cause is printed, and the others go on."""
    done = []
    for item in items:
        try:
            done.append(work(item))
        except ClientError as error:
            complain(error)
    return done


def discard_output() -> None:
    """The reader has closed the pipe (`| head`): Python must not fail again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: ClientError) -> None:
    sys.stdout.flush()
    print(f"moldau: {printable(str(error))}", file=sys.stderr)


def confirm(question: str) -> None:
    """Ask on standard input whether to go on. Raises ClientError unless the answer is yes."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise ClientError("no one to confirm, nothing was done; add --yes to go ahead")
    if answer.strip().lower() not in ("y", "yes"):
        raise ClientError("not confirmed, nothing was done")


def print_json(document: Any) -> None:
    """Structs become objects with the names of their fields."""
    print(json.dumps(msgspec.to_builtins(document), indent=2))


def show_described(
    arguments: argparse.Namespace,
    kind: str,
    documents: Sequence[T],
    print_one: Callable[[T], None],
) -> None:
    """Print one JSON document, or one description after the other for people."""
    if arguments.json:
        print_json({kind: documents})
        return
    for number, document in enumerate(documents):
        if number:
            print()
        print_one(document)


def show_deleted(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    if arguments.json:
        print_json({"deleted": names})
        return
    for name in names:
        print(f"{printable(name)} deleted")


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Names and values, one a line."""
    width = max(map(len, facts))
    console = Console(soft_wrap=True, highlight=False)
    for name, value in facts.items():
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", shown(value)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Numbers to the right. On a terminal long values wrap, elsewhere lines are never cut."""
    cells = [[shown(value) for value in row] for row in rows]
    kinds = [{type(row[index]) for row in rows} - {type(None)} for index in range(len(columns))]
    numeric = [kind == {int} for kind in kinds]
    console = Console()
    if console.is_terminal:
        table = Table()
        for name, right in zip(columns, numeric, strict=True):
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for line in cells:
            table.add_row(*map(Text, line))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in [list(columns), *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def shown(value: Cell) -> str:
    return "-" if value is None or value == "" else printable(str(value))


def printable(text: str) -> str:
    """Clients choose their ids: control characters are escaped, so as not to reach a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size_text(size: int) -> str:
    """A size for people, such as `1.5 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration_text(seconds: float) -> str:
    """The two largest units, such as `2 h 5 min`."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in parts[:2])
