"""`moldau transactions abort`: of a transactional id, or of one that hangs in a partition."""

from __future__ import annotations

import argparse
from functools import partial

from moldau.ops.client import Cluster, TopicPartition
from moldau.ops.command_line import AddAction, confirm, parsed_by, print_json, printable, try_each
from moldau.ops.commands.transactions_find_hanging import hanging_document, parse_partition
from moldau.ops.operations.hanging_transactions import find_open, write_abort_marker
from moldau.ops.operations.reset_offsets import parse_offset
from moldau.ops.operations.transactions import abort_transaction, find_ongoing

HELP = """\
examples:
  moldau transactions abort billing-7
  moldau transactions abort billing-7 billing-8 --yes
  moldau transactions abort --topic orders --partition 0 --start-offset 4711

By id: what it has written is never read by read_committed consumers, offsets it was to commit are
dropped, and its producer is fenced: a client that still runs gets a fatal error, and has to be
started again.

By partition and first offset: for a transaction that hangs there, as `moldau transactions
find-hanging` shows it. Only this partition is changed. It is refused for a transaction that a
coordinator knows: abort that by its id.
"""


def add_abort(add: AddAction) -> None:
    summary = "abort an open transaction and fence its producer, or end one that hangs"
    parser = add("abort", summary, HELP, _abort)
    parser.add_argument("ids", nargs="*", metavar="ID", help="a transactional id")
    parser.add_argument("--topic", metavar="TOPIC", help="where it hangs")
    parser.add_argument("--partition", type=parsed_by(parse_partition), metavar="P")
    parser.add_argument(
        "--start-offset", type=parsed_by(parse_offset), metavar="N", help="of its first record"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _abort(cluster: Cluster, arguments: argparse.Namespace) -> int:
    hanging = (arguments.topic, arguments.partition, arguments.start_offset)
    if arguments.ids and hanging == (None, None, None):
        return _abort_ids(cluster, arguments)
    if arguments.ids or None in hanging:
        arguments.action_parser.error(
            "want either transactional ids, or all of --topic, --partition and --start-offset"
        )
    return _abort_hanging(cluster, arguments)


# --- by id ---


def _abort_ids(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.ids))
    found = try_each(wanted, partial(find_ongoing, cluster))
    if found and not arguments.yes:
        names = ", ".join(one.transactional_id for one in found)
        confirm(f"Abort the transaction of {names}, and fence its producer?")
    aborted = try_each(found, partial(abort_transaction, cluster))
    if arguments.json:
        print_json({"aborted": aborted})
    else:
        for done in aborted:
            print(f"{printable(done.transactional_id)} aborted, its producer is fenced")
    return 0 if len(aborted) == len(wanted) else 1


# --- one that hangs ---


def _abort_hanging(cluster: Cluster, arguments: argparse.Namespace) -> int:
    place = TopicPartition(arguments.topic, arguments.partition)
    found = find_open(cluster, place, arguments.start_offset)
    if not arguments.yes:
        confirm(f"Abort the transaction of producer {found.producer_id} in {place}?")
        found = find_open(cluster, place, arguments.start_offset)
    write_abort_marker(cluster, found)
    if arguments.json:
        print_json({"aborted": [hanging_document(found)]})
    else:
        print(f"{place}: the transaction from offset {found.start_offset} on is aborted")
    return 0
