"""`moldau produce`: lines of standard input become records of a topic."""

from __future__ import annotations

import argparse
import base64
import binascii
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from moldau.ops.client import ClientError, Cluster, TopicPartition
from moldau.ops.client.partitioning import partition_of
from moldau.ops.client.sending import Outgoing, by_partition, partitions_for_sending, send
from moldau.ops.command_line import EXIT_CODES, add_bootstrap, parsed_by, print_json, run_action

DESCRIPTION = "Send the lines of standard input to a topic, one record each."

EXAMPLES = f"""\
examples:
  echo hello | moldau produce greetings
  moldau produce orders --key-separator : < lines      key:value
  moldau produce orders --header source=shell --partition 0
  moldau consume orders --json | moldau produce orders-copy --json

Without --partition a record with a key goes where Kafka's own clients send it, others go to the
partitions in turn. A topic that does not exist is created if the broker does so for clients.

With --json a line is an object: value, key (text, or any JSON value; null for none), headers (an
object, or a list of [name, value]), partition, timestamp (ms). Bytes that are not text:
value_base64, key_base64.

{EXIT_CODES}
"""

CHUNK_BYTES = 1 << 18
MAX_BATCH_BYTES = 512 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.set_defaults(action=_produce, action_parser=parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--partition", type=int, metavar="N", help="send everything to this one")
    parser.add_argument("--key", metavar="KEY", help="the key of every record")
    parser.add_argument(
        "--key-separator", metavar="TEXT", help="what divides the key from the value in a line"
    )
    parser.add_argument(
        "--header", type=parsed_by(_header), action="append", default=[], metavar="NAME=VALUE",
        help="a header of every record; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="lines are JSON objects")
    parser.add_argument("--verbose", action="store_true", help="print where each record went")
    add_bootstrap(parser)


run = run_action


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"want NAME=VALUE, got {text!r}")
    return name, value.encode()


def _produce(cluster: Cluster, arguments: argparse.Namespace) -> int:
    partitions = partitions_for_sending(cluster, arguments.topic)
    if arguments.partition is not None and not 0 <= arguments.partition < partitions:
        raise ClientError(
            f"{arguments.topic} has partitions 0 to {partitions - 1}, not {arguments.partition}"
        )
    parse = _parse_json if arguments.json else _parse_line
    count = 0
    for lines in _chunks(sys.stdin.buffer.fileno()):
        chosen: list[tuple[int, Outgoing]] = []
        for line in lines:
            partition, record = parse(line, arguments)
            if partition is None:
                partition = partition_of(record.key, count, partitions)
            elif not 0 <= partition < partitions:
                raise ClientError(f"{arguments.topic} has no partition {partition}")
            chosen.append((partition, record))
            count += 1
        for partition, records in by_partition(chosen).items():
            _send(cluster, TopicPartition(arguments.topic, partition), records, arguments.verbose)
    return 0


def _chunks(descriptor: int) -> Iterator[list[bytes]]:
    """Whole lines, as many as there are now: a line that is typed is sent at once."""
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _send(
    cluster: Cluster, place: TopicPartition, records: Sequence[Outgoing], verbose: bool
) -> None:
    while records:
        size = count = 0
        for record in records:
            size += len(record.key or b"") + len(record.value or b"") + 64
            if count and size > MAX_BATCH_BYTES:
                break
            count += 1
        offset = send(cluster, place, records[:count])
        if verbose:
            print_json({"partition": place.partition, "offset": offset, "records": count})
        records = records[count:]


# --- a line ---


def _parse_line(line: bytes, arguments: argparse.Namespace) -> tuple[int | None, Outgoing]:
    key = None if arguments.key is None else arguments.key.encode()
    if arguments.key_separator is not None:
        key, separator, value = line.partition(arguments.key_separator.encode())
        if not separator:
            raise ClientError(f"no {arguments.key_separator!r} in the line {_shown(line)}")
        line = value
    return arguments.partition, Outgoing(key, line, arguments.header)


def _parse_json(line: bytes, arguments: argparse.Namespace) -> tuple[int | None, Outgoing]:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        headers = fields.get("headers") or []
        pairs = list(headers.items()) if isinstance(headers, dict) else headers
        record = Outgoing(
            _bytes_of(fields, "key"),
            _bytes_of(fields, "value"),
            [*((str(name), _encoded(value)) for name, value in pairs), *arguments.header],
            fields.get("timestamp"),
        )
        partition = fields.get("partition")
        if not isinstance(partition, int | None) or not isinstance(record.timestamp_ms, int | None):
            raise TypeError("partition and timestamp are numbers")
    except (ValueError, TypeError, binascii.Error) as fault:
        raise ClientError(f"not a record: {_shown(line)}: {fault}") from None
    return partition if arguments.partition is None else arguments.partition, record


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    if (coded := fields.get(f"{name}_base64")) is not None:
        return base64.b64decode(coded, validate=True)
    return _encoded(fields.get(name))


def _encoded(value: object) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 80 else text[:77] + "...")
