"""`moldau consume`: the records of a topic on standard output."""

from __future__ import annotations

import argparse
import base64
import sys
import time
from functools import partial
from typing import Any

import msgspec

from moldau.broker.wire.records import Record, decode_headers
from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.client.membership import HEARTBEAT_S, Membership, RejoinNeeded
from moldau.ops.client.reading import OffsetOutOfRange, read
from moldau.ops.command_line import EXIT_CODES, add_bootstrap, parsed_by, positive, run_action
from moldau.ops.operations.reset_offsets import parse_datetime

DESCRIPTION = "Print the records of a topic, one a line."

EXAMPLES = f"""\
examples:
  moldau consume greetings                       everything there is, then stop
  moldau consume orders --follow --from end      what comes from now on
  moldau consume orders --from 2026-03-01T08:00:00Z --count 10 --keys
  moldau consume orders --partition 0 --from 1042 --count 1 --json
  moldau consume orders --group readers --follow share the partitions with other members

--from: beginning (default), end, an offset, a negative number (so many before the end), or an ISO
8601 time. With --group it counts only where the group has committed nothing; what was printed is
committed, and the group's other members share the partitions.

With --json a line is an object: topic, partition, offset, timestamp (ms), key, value, headers.
Bytes that are not UTF-8 are in key_base64 and value_base64.

{EXIT_CODES}
"""

WAIT_MS = 500
COMMIT_EVERY_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.set_defaults(action=_consume, action_parser=parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--partition", type=int, metavar="N", help="this partition only")
    parser.add_argument(
        "--from", dest="begin", type=parsed_by(_begin), default=("timestamp", EARLIEST),
        metavar="WHERE", help="beginning, end, an offset, -N, or a time",
    )  # fmt: skip
    parser.add_argument("--count", type=positive, metavar="N", help="stop after so many records")
    parser.add_argument("--follow", action="store_true", help="wait for more at the end")
    parser.add_argument("--group", metavar="GROUP", help="as a member of this group")
    parser.add_argument("--keys", action="store_true", help="print the key, a tab, the value")
    parser.add_argument(
        "--uncommitted", action="store_true", help="also records of open and aborted transactions"
    )
    parser.add_argument("--json", action="store_true", help="print JSON objects")
    add_bootstrap(parser)


run = run_action


def _begin(text: str) -> tuple[str, int]:
    fixed = {"beginning": EARLIEST, "end": LATEST}
    if text in fixed:
        return "timestamp", fixed[text]
    if text.lstrip("-").isdigit():
        return "offset", int(text)
    return "timestamp", parse_datetime(text)


def _consume(cluster: Cluster, arguments: argparse.Namespace) -> int:
    topics = cluster.topics([arguments.topic])
    if arguments.topic not in topics:
        raise refusal(f"topic {arguments.topic}", 3)
    partitions = len(topics[arguments.topic].partitions)
    if arguments.partition is not None and not 0 <= arguments.partition < partitions:
        raise ClientError(f"{arguments.topic} has no partition {arguments.partition}")
    reader = _Reader(cluster, arguments)
    if arguments.group is None:
        chosen = range(partitions) if arguments.partition is None else [arguments.partition]
        reader.assign(reader.beginnings(list(chosen)))
        reader.run()
        return 0
    if arguments.partition is not None:
        raise ClientError("--group shares the partitions itself: leave out --partition")
    ask = partial(cluster.call_coordinator, arguments.group)
    member = Membership(ask, arguments.group, arguments.topic, partitions)
    try:
        _run_as_member(reader, member)
    finally:
        member.leave()
    return 0


def _run_as_member(reader: _Reader, member: Membership) -> None:
    while True:
        assigned = member.join()
        positions = member.committed(assigned) if assigned else {}
        fresh = [each for each in assigned if each not in positions]
        reader.assign(positions | reader.beginnings(fresh))
        try:
            reader.run(member)
        except RejoinNeeded:
            continue
        return


class _Reader:
    def __init__(self, cluster: Cluster, arguments: argparse.Namespace) -> None:
        self._cluster = cluster
        self._arguments = arguments
        self._topic: str = arguments.topic
        self._left: int | None = arguments.count
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._printed: dict[int, int] = {}  # since the last commit
        self._beat_at = self._commit_at = 0.0

    def assign(self, positions: dict[int, int]) -> None:
        self._positions = positions
        self._ends = self._offsets(list(positions), LATEST)
        self._printed = {}

    def beginnings(self, partitions: list[int]) -> dict[int, int]:
        kind, value = self._arguments.begin
        ends = self._offsets(partitions, LATEST)
        if kind == "offset":
            before_end = {each: max(ends[each] + value, 0) for each in partitions}
            return before_end if value < 0 else dict.fromkeys(partitions, value)
        found = self._offsets(partitions, value)
        return {each: found[each] if found[each] >= 0 else ends[each] for each in partitions}

    def _offsets(self, partitions: list[int], timestamp: int) -> dict[int, int]:
        wanted = {TopicPartition(self._topic, each): timestamp for each in partitions}
        isolation = 0 if self._arguments.uncommitted else 1
        found = self._cluster.list_offsets(wanted, isolation)
        return {place.partition: offset for place, offset in found.items()}

    # --- reading ---

    def run(self, member: Membership | None = None) -> None:
        """Read until everything wanted is printed. Raises RejoinNeeded."""
        while self._left is None or self._left > 0:
            reading = [
                each
                for each, position in self._positions.items()
                if self._arguments.follow or position < self._ends[each]
            ]
            if not reading and not (self._arguments.follow and member is not None):
                break
            wait_ms = WAIT_MS // max(len(reading), 1) if self._arguments.follow else 0
            if not reading:
                time.sleep(WAIT_MS / 1000)  # a member without partitions
            for partition in reading:
                self._read(partition, wait_ms)
                if member is not None:
                    self._stay(member)
                if self._left == 0:
                    break
            sys.stdout.flush()
        if member is not None:
            member.commit(self._printed)

    def _stay(self, member: Membership) -> None:
        now = time.monotonic()
        if self._printed and now >= self._commit_at:
            sys.stdout.flush()
            member.commit(self._printed)
            self._printed = {}
            self._commit_at = now + COMMIT_EVERY_S
        if now >= self._beat_at:
            member.heartbeat()
            self._beat_at = now + HEARTBEAT_S

    def _read(self, partition: int, wait_ms: int) -> None:
        place = TopicPartition(self._topic, partition)
        position = self._positions[partition]
        try:
            found = read(
                self._cluster,
                place,
                position,
                wait_ms=wait_ms,
                committed=not self._arguments.uncommitted,
            )
        except OffsetOutOfRange:
            start = self._offsets([partition], EARLIEST)[partition]
            if position >= start:
                raise ClientError(
                    f"partition {place} ends before offset {position}; --from names another place"
                ) from None
            print(f"moldau: {place}: offsets {position} to {start - 1} are gone", file=sys.stderr)
            self._positions[partition] = start
            return
        if found.unreadable:
            print(f"moldau: {place}: a batch cannot be read, left out", file=sys.stderr)
        following = found.next_offset
        for record in found.records:
            self._print(partition, record)
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    following = record.offset + 1
                    break
        if following == position and not found.records and position < self._ends[partition]:
            following = min(found.end, self._ends[partition])  # compacted, or lost by the store
        self._positions[partition] = following
        if following != position:
            self._printed[partition] = following

    # --- printing ---

    def _print(self, partition: int, record: Record) -> None:
        out = sys.stdout.buffer
        if self._arguments.json:
            document = record_document(self._topic, partition, record)
            out.write(msgspec.json.encode(document) + b"\n")
            return
        if self._arguments.keys:
            out.write((record.key or b"") + b"\t")
        out.write((record.value or b"") + b"\n")


def record_document(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record as JSON; bytes that are not text are in base64."""
    document: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        try:
            document[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            document[f"{name}_base64"] = base64.b64encode(data or b"").decode()
    document["headers"] = [
        (name, None if value is None else value.decode(errors="replace"))
        for name, value in decode_headers(record.headers)
    ]
    return document
