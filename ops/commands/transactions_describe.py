"""`moldau transactions describe`: how a transaction is shown."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import partial

from moldau.ops.client import Cluster
from moldau.ops.command_line import (
    AddAction,
    duration_text,
    print_facts,
    print_table,
    show_described,
    try_each,
)
from moldau.ops.operations.transactions import (
    TransactionDescription,
    TransactionListing,
    describe_transaction,
)

HELP = """\
examples:
  moldau transactions describe billing-7
  moldau transactions describe billing-7 billing-8 --json

open from: the offset of its first record in the partition; none if it has not written there yet, or
its marker is there already
stable: the last stable offset, up to which read_committed consumers read. It is the first record of
the oldest open transaction of all producers
__consumer_offsets: offsets of a consumer group that are committed with the transaction
"""


def add_describe(add: AddAction) -> None:
    parser = add("describe", "show state, producer, times and partitions", HELP, _describe)
    parser.add_argument("ids", nargs="+", metavar="ID", help="a transactional id")


def _describe(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.ids))
    described = try_each(wanted, partial(describe_transaction, cluster))
    show_described(arguments, "transactions", described, _print_transaction)
    return 0 if len(described) == len(wanted) else 1


def _print_transaction(one: TransactionDescription) -> None:
    coordinator = one.coordinator
    print_facts(
        {
            "transactional id": one.transactional_id,
            "state": one.state,
            "producer id": one.producer_id,
            "producer epoch": one.producer_epoch,
            "timeout": duration_text(one.timeout_ms / 1000),
            "started": None if one.started_ms is None else time_text(one.started_ms),
            "open for": running_text(one),
            "coordinator": f"{coordinator.id} ({coordinator.address})",
        }
    )
    if one.partitions:
        print()
        columns = ("topic", "partition", "open_from", "last_stable_offset", "end_offset")
        rows = [tuple(getattr(place, name) for name in columns) for place in one.partitions]
        print_table(("topic", "partition", "open from", "stable", "end"), rows)


def running_text(one: TransactionListing | TransactionDescription) -> str | None:
    running = one.running_ms
    return None if running is None else duration_text(running / 1000)


def time_text(ms: int) -> str:
    """UTC, to the second."""
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return when.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
