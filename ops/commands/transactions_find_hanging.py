"""`moldau transactions find-hanging`: which partitions are asked, and how the result is shown."""

from __future__ import annotations

import argparse
import time
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.ops.client import Cluster, TopicPartition, partitions_of, refusal
from moldau.ops.command_line import (
    AddAction,
    duration_text,
    parse_duration,
    parsed_by,
    print_json,
    print_table,
)
from moldau.ops.operations.hanging_transactions import find_hanging
from moldau.ops.operations.open_transactions import OpenTransaction

HELP = """\
examples:
  moldau transactions find-hanging
  moldau transactions find-hanging --topic orders --partition 0 --partition 1
  moldau transactions find-hanging --longer-than 1h --json

A transaction hangs when it is open in a partition and no coordinator knows of it, so that nothing
will end it: read_committed consumers stop at its first record. `moldau transactions abort` does.
Every partition is asked; on a broker with thousands of them that takes a while.
"""

NONE_FOUND = "no transaction hangs"
REMEDY = "end one with: moldau transactions abort --topic {} --partition {} --start-offset {}"


def add_find_hanging(add: AddAction) -> None:
    summary = "show transactions that are open in a partition and that no coordinator will end"
    parser = add("find-hanging", summary, HELP, _find_hanging)
    parser.add_argument("--topic", metavar="TOPIC", help="only in this topic")
    parser.add_argument(
        "--partition", type=parsed_by(parse_partition), action="append", metavar="P",
        help="only in this partition of it; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--longer-than", type=parsed_by(parse_duration), default=0, metavar="DURATION",
        help="only those whose newest record is older, such as 90s, 15min or 2h",
    )  # fmt: skip


def parse_partition(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 31:
        raise ValueError(f"want the number of a partition, from 0 on, got {text!r}")
    return int(text)


def _find_hanging(cluster: Cluster, arguments: argparse.Namespace) -> int:
    if arguments.partition and arguments.topic is None:
        arguments.action_parser.error("--partition is of a topic: add --topic")
    places = _places(cluster, arguments.topic, arguments.partition)
    now_ms = time.time_ns() // 1_000_000
    hanging = [
        one
        for one in find_hanging(cluster, places)
        if now_ms - one.last_timestamp_ms >= arguments.longer_than
    ]
    if arguments.json:
        print_json({"hanging": [hanging_document(one) for one in hanging]})
    elif hanging:
        _print_hanging(hanging, now_ms)
    else:
        print(NONE_FOUND)
    return 0


def _places(
    cluster: Cluster, topic: str | None, partitions: list[int] | None
) -> list[TopicPartition]:
    """Raises ClientError if one that is named does not exist."""
    if topic is None:
        return partitions_of(cluster.metadata(None))
    there = partitions_of(cluster.metadata([topic]))
    if not there:
        raise refusal(f"topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted = [TopicPartition(topic, number) for number in partitions or ()]
    for place in wanted:
        if place not in there:
            raise refusal(f"partition {place}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return wanted or there


def hanging_document(one: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": one.place.topic,
        "partition": one.place.partition,
        "start_offset": one.start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_timestamp_ms": one.last_timestamp_ms,
    }


def _print_hanging(hanging: list[OpenTransaction], now_ms: int) -> None:
    rows = [
        (
            *one.place,
            one.start_offset,
            one.producer_id,
            one.producer_epoch,
            duration_text(max(now_ms - one.last_timestamp_ms, 0) / 1000),
        )
        for one in hanging
    ]
    columns = ("topic", "partition", "start", "producer id", "producer epoch", "last record before")
    print_table(columns, rows)
    first = hanging[0]
    print(REMEDY.format(*first.place, first.start_offset))
