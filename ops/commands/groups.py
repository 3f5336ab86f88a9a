"""`moldau groups`: list, describe and delete consumer groups, and reset their offsets.

describe and reset-offsets have modules of their own.
"""

from __future__ import annotations

import argparse

from moldau.ops.client import Cluster
from moldau.ops.command_line import (
    add_actions,
    choice_of,
    print_json,
    print_table,
    run_action,
    show_deleted,
    try_each,
)
from moldau.ops.commands.groups_describe import add_describe
from moldau.ops.commands.groups_history import add_explain, add_history
from moldau.ops.commands.groups_reset import add_reset
from moldau.ops.operations.groups import delete_group, list_groups

DESCRIPTION = "List, describe and delete consumer groups, and reset their offsets."

EXAMPLES = """\
examples:
  moldau groups list
  moldau groups describe billing
  moldau groups reset-offsets billing --topic orders --to-earliest
  moldau groups delete billing
  moldau groups ACTION --help       all options of an action
"""

STATES = (
    "Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
    "Dead",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    listing = add(
        "list",
        "show the groups of all brokers",
        "examples:\n  moldau groups list\n  moldau groups list --state Empty --json\n",
        _list,
    )
    listing.add_argument(
        "--state", type=choice_of(STATES, "group state"), action="append", default=[],
        metavar="STATE", help=f"only groups in this state, of {', '.join(STATES)}; may be repeated",
    )  # fmt: skip

    add_describe(add)

    deleting = add(
        "delete",
        "delete groups that have no members, and their offsets",
        "examples:\n  moldau groups delete billing\n",
        _delete,
    )
    deleting.add_argument("groups", nargs="+", metavar="GROUP")

    add_reset(add)
    add_history(add)
    add_explain(add)


run = run_action


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    listed = list_groups(cluster, arguments.state)
    if arguments.json:
        print_json({"groups": listed})
    else:
        rows = [
            (one.group, one.state, one.type, one.protocol_type, one.coordinator.address)
            for one in listed
        ]
        print_table(("group", "state", "type", "protocol type", "coordinator"), rows)
    return 0


def _delete(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.groups))

    def delete(group_id: str) -> str:
        delete_group(cluster, group_id)
        return group_id

    deleted = try_each(wanted, delete)
    show_deleted(arguments, deleted)
    return 0 if deleted == wanted else 1
