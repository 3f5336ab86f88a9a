"""`moldau transactions`: list, describe and abort transactions, and find those that hang.

All but list have modules of their own.
"""

from __future__ import annotations

import argparse

from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.ops.client import Cluster
from moldau.ops.command_line import (
    add_actions,
    choice_of,
    parse_duration,
    parsed_by,
    print_json,
    print_table,
    run_action,
)
from moldau.ops.commands.transactions_abort import add_abort
from moldau.ops.commands.transactions_describe import add_describe, running_text
from moldau.ops.commands.transactions_find_hanging import add_find_hanging
from moldau.ops.operations.transactions import STATES, list_with_times

DESCRIPTION = "List, describe and abort transactions, and find those that hang."

EXAMPLES = """\
examples:
  moldau transactions list --state Ongoing --longer-than 10min
  moldau transactions describe billing-7
  moldau transactions abort billing-7       and fence its producer
  moldau transactions find-hanging
  moldau transactions ACTION --help         all options of an action
"""

LIST_HELP = """\
examples:
  moldau transactions list
  moldau transactions list --state Ongoing --longer-than 10min
  moldau transactions list --id-pattern 'billing-.*' --json

A transactional id is listed as long as its coordinator remembers it: for 7 days after its last
transaction (transactional.id.expiration.ms). The pattern is a regular expression of the whole id.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    listing = add("list", "show the transactional ids of all brokers", LIST_HELP, _list)
    listing.add_argument(
        "--state", type=choice_of(STATES, "state"), action="append", default=[], metavar="STATE",
        help=f"only those in this state, of {', '.join(STATES)}; may be repeated",
    )  # fmt: skip
    listing.add_argument(
        "--producer-id", type=parsed_by(_producer_id), action="append", default=[], metavar="N",
        help="only that of this producer id; may be repeated",
    )  # fmt: skip
    listing.add_argument(
        "--longer-than", type=parsed_by(parse_duration), metavar="DURATION",
        help="only open ones that began longer ago, such as 90s, 15min or 2h",
    )  # fmt: skip
    listing.add_argument(
        "--id-pattern", metavar="REGEX", help="only ids that match this regular expression"
    )
    add_describe(add)
    add_find_hanging(add)
    add_abort(add)


run = run_action


def _producer_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 63:
        raise ValueError(f"want a producer id, a number from 0 on, got {text!r}")
    return int(text)


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    longer_than = -1 if arguments.longer_than is None else arguments.longer_than
    wanted = ListTransactionsRequest(
        arguments.state, arguments.producer_id, longer_than, arguments.id_pattern
    )
    listed = list_with_times(cluster, wanted)
    if arguments.json:
        print_json({"transactions": listed})
        return 0
    rows = [
        (
            one.transactional_id,
            one.state,
            one.producer_id,
            running_text(one),
            one.coordinator.address,
        )
        for one in listed
    ]
    print_table(("transactional id", "state", "producer id", "open for", "coordinator"), rows)
    return 0
