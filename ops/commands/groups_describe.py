"""`moldau groups describe`: how a group is shown."""

from __future__ import annotations

import argparse
from functools import partial

from moldau.ops.client import Cluster
from moldau.ops.command_line import AddAction, print_facts, print_table, show_described, try_each
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.groups import GroupDescription, GroupPartition, describe_group
from moldau.ops.operations.lag import LagCounter

HELP = """\
examples:
  moldau groups describe billing
  moldau groups describe billing --json | jq '.groups[0].total_lag'

Lag is in records. It is unknown where nothing is committed, and for a native topic if the broker
runs on another machine or more than 10,000 records would have to be counted. Identity and
generation are shown if the broker runs on this machine: Kafka's protocol does not carry them.
"""

NOT_COUNTED = (
    "lag - for a native topic: unknown, its offsets are times; records are counted where the\n"
    "broker runs on this machine, up to 10,000, or where Redis has counted them (XINFO GROUPS)"
)


def add_describe(add: AddAction) -> None:
    parser = add("describe", "show members, assignment, offsets and lag", HELP, _describe)
    parser.add_argument("groups", nargs="+", metavar="GROUP")


def _describe(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.groups))
    workers = LocalWorkers(cluster)
    describe = partial(describe_group, cluster, workers, LagCounter(cluster, workers))
    described = try_each(wanted, describe)
    show_described(arguments, "groups", described, _print_group)
    return 0 if len(described) == len(wanted) else 1


def _print_group(group: GroupDescription) -> None:
    coordinator = group.coordinator
    print_facts(
        {
            "group": group.group,
            "identity": group.identity,
            "state": group.state,
            "type": group.type,
            "generation": group.generation,
            "protocol type": group.protocol_type,
            "protocol": group.protocol,
            "coordinator": f"{coordinator.id} ({coordinator.address})",
            "members": len(group.members),
            "total lag": group.total_lag,
        }
    )
    if group.members:
        print()
        print_table(
            ("member", "instance", "client", "host", "assignment"),
            [
                (
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.host,
                    _assignment_text(one.assignment),
                )
                for one in group.members
            ],
        )
    if group.partitions:
        print()
        columns = ("topic", "partition", "committed_offset", "end_offset", "lag", "client_id")
        rows = [
            tuple(getattr(one, name) for name in (*columns, "member_id"))
            for one in group.partitions
        ]
        print_table(("topic", "partition", "committed", "end", "lag", "client", "member"), rows)
    if any(_is_not_counted(one) for one in group.partitions):
        print(NOT_COUNTED)


def _is_not_counted(partition: GroupPartition) -> bool:
    is_behind = partition.committed_offset is not None and partition.end_offset is not None
    return bool(partition.native and is_behind and partition.lag is None)


def _assignment_text(assignment: dict[str, list[int]] | None) -> str | None:
    if assignment is None:
        return "(of another protocol)"
    return " ".join(
        f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in assignment.items()
    )
