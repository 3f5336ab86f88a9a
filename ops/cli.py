"""The `moldau` command: finds the subcommand and runs its module.

A subcommand is a module with `add_arguments(parser)` and `run(arguments) -> exit code`, named in
COMMANDS. It is imported only when it is asked for.
"""

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

DESCRIPTION = """\
Moldau is a Kafka-protocol broker that keeps its logs in Redis Streams.
"""

EXAMPLES = """\
examples:
  moldau serve                     a broker on 127.0.0.1:9092 with its own store
  moldau serve --help              all its options
  moldau doctor                    is this machine fit for it? takes the options of serve
  moldau status                    the processes of a running broker
  moldau top                       live view of rates, processes, topics and lag
  moldau topics create orders      topics: create, list, describe, alter, delete
  moldau produce orders            lines of standard input as records; `consume` prints them
  moldau groups describe billing   consumer groups: members, offsets, lag
  moldau transactions list         transactions: list, describe, abort, find-hanging
  moldau users add alice           users: add, list, passwd, remove
  moldau acls list                 what they may do: add, list, remove, explain
  moldau tokens list               delegation tokens: create, list, renew, expire
  moldau quotas list               how much of it: set, list, remove
  moldau backup /backup/monday     back up a running broker; `restore` puts it back
  moldau mirror --help             move here from Kafka: the same records at the same offsets
  moldau pipeline archive --help   archive topics to Delta tables with Spark
  moldau bench produce             measure the broker beside raw Redis on this machine

`moldau COMMAND --help` has examples and all options of a command.
"""


class Command(NamedTuple):
    module: str
    summary: str


COMMANDS = {
    "serve": Command("moldau.ops.serve.command", "start the broker"),
    "status": Command("moldau.ops.commands.status", "show the processes of a running broker"),
    "doctor": Command(
        "moldau.ops.doctor.command", "check this machine, the store and the settings"
    ),
    "top": Command("moldau.ops.commands.top", "live view of rates, processes, topics and lag"),
    "topics": Command(
        "moldau.ops.commands.topics", "list, describe, create, delete and alter topics"
    ),
    "produce": Command("moldau.ops.commands.produce", "send lines of standard input to a topic"),
    "consume": Command("moldau.ops.commands.consume", "print the records of a topic"),
    "groups": Command(
        "moldau.ops.commands.groups", "list, describe, delete groups and reset their offsets"
    ),
    "transactions": Command(
        "moldau.ops.commands.transactions",
        "list, describe and abort transactions, find those that hang",
    ),
    "users": Command(
        "moldau.ops.commands.users", "add, list and remove users, change their passwords"
    ),
    "acls": Command(
        "moldau.ops.commands.acls", "add, list, remove and explain ACLs: who may do what"
    ),
    "tokens": Command(
        "moldau.ops.commands.tokens", "create, list, renew and expire delegation tokens"
    ),
    "quotas": Command("moldau.ops.commands.quotas", "set, list and remove quotas of clients"),
    "backup": Command("moldau.ops.commands.backup", "back up a running broker, and verify backups"),
    "restore": Command("moldau.ops.commands.restore", "put a backup into a new data directory"),
    "mirror": Command(
        "moldau.ops.commands.mirror", "mirror topics of a Kafka cluster, at their own offsets"
    ),
    "pipeline": Command("moldau.ops.pipeline.command", "archive topics to a lake with Spark"),
    "bench": Command("moldau.loadtest.bench.command", "measure a broker against its own baseline"),
    "completion": Command("moldau.ops.completion", "print a script for completion in your shell"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if word in COMMANDS), None)
    parser = build_parser(() if chosen is None else (chosen,))
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    code: int = importlib.import_module(COMMANDS[parsed.command].module).run(parsed)
    return code


def build_parser(complete: Collection[str]) -> argparse.ArgumentParser:
    """The parser of the whole command; the subcommands in `complete` with all their arguments."""
    parser = argparse.ArgumentParser(
        prog="moldau",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("moldau")
    parser.add_argument("--version", action="version", version=f"moldau {version}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name, help=command.summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in complete:
            importlib.import_module(command.module).add_arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
