"""`moldau topics describe`: how a topic is shown."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from moldau.broker.errors import ErrorCode
from moldau.ops.client import Cluster, refusal
from moldau.ops.command_line import (
    AddAction,
    complain,
    print_facts,
    print_table,
    show_described,
    size_text,
)
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.topics import (
    PartitionDescription,
    TopicDescription,
    describe_topic,
    topic_sizes,
)

HELP = """\
examples:
  moldau topics describe orders
  moldau topics describe orders --json

records is the end offset minus the start offset and minus gaps: a compacted log holds fewer
epoch is raised when the store lost the end of the log, or might have; the log goes on above it, and
the offsets in between are a gap (shown if the broker runs on this machine)
"""


def add_describe(add: AddAction) -> None:
    summary = "show partitions, leaders, offsets, sizes and the configuration that is not default"
    parser = add("describe", summary, HELP, _describe)
    parser.add_argument("topics", nargs="+", metavar="TOPIC")


def _describe(cluster: Cluster, arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.topics))
    found = cluster.topics(names)
    sizes = topic_sizes(cluster, found)
    workers = LocalWorkers(cluster)
    described = [describe_topic(cluster, workers, topic, sizes) for topic in found.values()]
    show_described(arguments, "topics", described, _print_topic)
    return complain_of_missing(names, found)


def complain_of_missing(names: list[str], found: Collection[str]) -> int:
    """The exit code: 1 when a topic does not exist."""
    missing = [name for name in names if name not in found]
    for name in missing:
        complain(refusal(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return 1 if missing else 0


def _print_topic(topic: TopicDescription) -> None:
    facts: dict[str, str | int | None] = {
        "topic": topic.name,
        "id": topic.id,
        "partitions": len(topic.partitions),
        "records": topic.records,
        "size": size_text(topic.size_bytes),
    }
    native = topic.native
    if native:
        del facts["records"]
        value = f", value: field {native.value}" if native.value else ""
        facts["storage"] = f"native, shared with Redis applications{value}"
        facts["stream"] = native.stream.replace("{topic}", topic.name)
        facts["offset"] = f"(ms << {native.bits}) | sequence, of an entry's id"
    print_facts(facts)
    print()
    print_table(
        ("partition", "leader", "address", "start", "end", "records", "size", "epoch"),
        [
            (
                one.partition,
                one.leader,
                one.leader_address,
                one.start_offset,
                one.end_offset,
                one.records,
                size_text(one.size_bytes),
                one.leader_epoch,
            )
            for one in topic.partitions
        ],
    )
    _print_gaps(topic.partitions)
    if native and native.groups:
        print()
        columns = ("partition", "group", "consumers", "pending", "last_delivered", "lag")
        rows = [tuple(getattr(one, column) for column in columns) for one in native.groups]
        print_table(
            ("partition", "group in Redis", "consumers", "pending", "last delivered", "lag"), rows
        )
    if topic.configs:
        print()
        rows = [(one.name, one.value, one.source) for one in topic.configs]
        print_table(("config", "value", "set by"), rows)


def _print_gaps(partitions: list[PartitionDescription]) -> None:
    rows = [
        (one.partition, gap.first_offset, gap.last_offset)
        for one in partitions
        for gap in one.gaps or ()
    ]
    if rows:
        print()
        print_table(("partition", "lost or unused from", "to"), rows)
    unknown = [str(one.partition) for one in partitions if one.gaps is None]
    if unknown:
        print()
        print(f"gaps of partition {', '.join(unknown)}: unknown, no worker can be asked from here")
