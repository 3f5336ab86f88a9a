"""What subcommands with actions share: options, tables, faults as exit codes.

Tables are for people: rich's on a terminal, plain columns when piped, where nothing is cut short.
Scripts take --json. Nothing here knows what is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.client import ClientError, Cluster, parse_addresses

BOOTSTRAP_ENV = "MOLDAU_BOOTSTRAP"
PORT_ENV = "MOLDAU_PORT"  # of `serve`: where a broker with the same environment listens
DEFAULT_PORT = "9092"
EXIT_CODES = "exit code: 0 done, 1 not done (the message says why), 2 wrong usage"

Cell = str | int | None
Action = Callable[[Cluster, argparse.Namespace], int]
Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_actions(
    parser: argparse.ArgumentParser, description: str, examples: str
) -> Callable[[str, str, str, Action], argparse.ArgumentParser]:
    """Give a command actions that ask a broker: `add(name, summary, examples, action) -> parser`.

    See `run_action`.
    """
    actions = begin_actions(parser, description, examples)

    def add(name: str, summary: str, text: str, action: Action) -> argparse.ArgumentParser:
        made = add_action(actions, name, summary, text, action)
        add_bootstrap(made)
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    return add


def begin_actions(parser: argparse.ArgumentParser, description: str, examples: str) -> Actions:
    """Give a command actions of its own, with `add_action`; `run_chosen` runs them."""
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
    """--bootstrap; `bootstrap_of` reads it."""
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"address of the broker, or several separated by commas "
        f"(${BOOTSTRAP_ENV}, else 127.0.0.1 and ${PORT_ENV} or 9092)",
    )


def bootstrap_of(arguments: argparse.Namespace) -> str:
    """HOST:PORT, or several of them, as given."""
    named = arguments.bootstrap or os.environ.get(BOOTSTRAP_ENV)
    return named or f"127.0.0.1:{os.environ.get(PORT_ENV) or DEFAULT_PORT}"


def positive(text: str) -> int:
    """For argparse: a number from 1 on."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < number < 1 << 31:
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return number


def run_action(arguments: argparse.Namespace) -> int:
    """Run the action that was chosen with the broker it asks."""

    def ask() -> int:
        parser: argparse.ArgumentParser = arguments.action_parser
        try:
            addresses = parse_addresses(bootstrap_of(arguments))
        except ValueError as error:
            parser.error(f"--bootstrap {error}")
        try:
            with Cluster(addresses) as cluster:
                code: int = arguments.action(cluster, arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            return 1
        return code

    return run_chosen(arguments, ask)


def run_chosen(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    """Do the work of the action that was chosen; one line on standard error when it fails."""
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


def discard_output() -> None:
    """Whoever read it has seen enough (`| head`): Python must not fail once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: ClientError) -> None:
    sys.stdout.flush()
    print(f"moldau: {printable(str(error))}", file=sys.stderr)


def confirm(question: str) -> None:
    """Go on only if whoever is at standard input says yes. Raises ClientError."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise ClientError("nobody is there to confirm, nothing was done; add --yes to go ahead")
    if answer.strip().lower() not in ("y", "yes"):
        raise ClientError("not confirmed, nothing was done")


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Names and values, one a line."""
    width = max(map(len, facts))
    console = Console(soft_wrap=True, highlight=False)
    for name, value in facts.items():
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", shown(value)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Numbers to the right. On a terminal long values wrap, elsewhere lines are as long as need."""
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
    """Ids are chosen by clients: what would steer the terminal is written out instead."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size_text(size: int) -> str:
    """Bytes for people."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
