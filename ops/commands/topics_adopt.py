"""`moldau topics adopt`: an existing Redis stream as a topic, its data left as it is.

The broker does the work when the topic is created: it reads the stream's ids to choose how many
bits of an offset are the sequence, and refuses a key that is not a stream. Here is the request, and
how the result is shown.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.command_line import AddAction, positive, print_facts, print_json

TIMEOUT_MS = 60_000  # a long stream is read once from end to end
LONGEST_NAME = 249
CHOOSE = 0  # as the number of bits: the broker chooses by the ids in the stream
PARTITION = "{partition}"
BITS = "moldau.native.sequence.bits"
# The data belongs to the applications: the broker's default retention must not trim it.
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]+")


def add_adopt(add: AddAction) -> None:
    adopt = add(
        "adopt",
        "make an existing Redis stream a topic, without changing its data",
        "examples:\n  moldau topics adopt --stream sensors:raw\n"
        "  moldau topics adopt --stream sensors:raw --topic sensors --value payload\n"
        "  moldau topics adopt --stream 'orders:{partition}' --partitions 4\n\n"
        "Each entry is a record. The fields key, value, timestamp and header.NAME are its parts;\n"
        "with other fields, the value is the field named with --value, or a JSON object of them\n"
        "all. Entry MS-SEQ has the offset (MS << bits) | SEQ; bits are chosen so that every SEQ\n"
        "of the stream fits. Nothing is trimmed unless retention.ms or retention.bytes of the\n"
        "topic is set. The stream stays when the topic is deleted.\n",
        run_adopt,
    )
    adopt.add_argument(
        "--stream", required=True, metavar="KEY",
        help="the stream's key; if it contains {partition}, one stream per partition",
    )  # fmt: skip
    adopt.add_argument("--topic", metavar="NAME", help="name of the topic (derived from the key)")
    adopt.add_argument("--value", metavar="FIELD", help="the field that is a record's value")
    adopt.add_argument(
        "--partitions", type=positive, default=1, metavar="N",
        help="number of streams: {partition} is 0 to N-1 (1)",
    )  # fmt: skip
    adopt.add_argument(
        "--bits", type=_bits, default=CHOOSE, metavar="N",
        help="bits of an offset for the sequence, 1 to 20 (by the stream's ids, at least 10)",
    )  # fmt: skip
    adopt.add_argument(
        "--create", action="store_true", help="create the stream, empty, if it does not exist"
    )


def _bits(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 20:
        raise argparse.ArgumentTypeError(f"want a number from 1 to 20, got {text!r}")
    return number


class Wanted(NamedTuple):
    topic: str
    stream: str
    partitions: int
    value: str | None

    def request(self, bits: int | None, *, dry_run: bool) -> CreateTopicsRequest:
        configs = {"moldau.storage": "native", "moldau.native.key": self.stream, **KEEP_ALL}
        if bits is not None:
            configs[BITS] = str(bits)
        if self.value is not None:
            configs["moldau.native.value"] = self.value
        listed = [CreatableTopicConfig(key, value) for key, value in configs.items()]
        return CreateTopicsRequest(
            [CreatableTopic(self.topic, self.partitions, -1, [], listed)], TIMEOUT_MS, dry_run
        )


def run_adopt(cluster: Cluster, arguments: argparse.Namespace) -> int:
    stream = arguments.stream
    topic = name_for(stream) if arguments.topic is None else arguments.topic
    if not topic:
        raise ClientError(
            f"no topic name can be derived from {stream!r}; choose one with --topic NAME"
        )
    if arguments.partitions > 1 and PARTITION not in stream:
        raise ClientError(
            f"{arguments.partitions} partitions need as many streams; "
            f"put {PARTITION} into --stream, as in '{stream}:{PARTITION}'"
        )
    wanted = Wanted(topic, stream, arguments.partitions, arguments.value)
    made, created = _adopt(cluster, wanted, arguments.bits, arguments.create)
    adopted = _adopted(cluster, wanted, made, created)
    if arguments.json:
        print_json(adopted)
        return 0
    if topic != stream and arguments.topic is None:
        print(f"the topic is named {topic}: topic names consist of a-z A-Z 0-9 . _ -\n")
    _print(adopted)
    return 0


def name_for(stream: str) -> str:
    """A topic name derived from a stream's key; empty when none can be."""
    name = _ILLEGAL.sub("-", stream.replace(PARTITION, "")).strip("-")
    return "" if name in (".", "..") else name[:LONGEST_NAME]


def _adopt(
    cluster: Cluster, wanted: Wanted, bits: int, create: bool
) -> tuple[CreatableTopicResult, bool]:
    """The topic, and whether its streams are new."""
    # With the bits given the broker does not check that the stream exists: ask first.
    made = ask_for_topic(cluster, wanted.request(CHOOSE, dry_run=bits != CHOOSE))
    missing = made.error_code == ErrorCode.RESOURCE_NOT_FOUND
    if missing and not create:
        raise ClientError(
            f"{made.error_message}; is --stream {wanted.stream} right? "
            "--create creates it, and so does an application that writes to it"
        )
    if missing and bits == CHOOSE and wanted.partitions > 1:
        # Those that exist may need more bits than usual, and the broker reads all or none.
        raise ClientError(f"{made.error_message}, others may exist; add --bits")
    if missing or (bits != CHOOSE and not made.error_code):
        made = ask_for_topic(cluster, wanted.request(bits or None, dry_run=False))
    _refuse(wanted, made)
    return made, missing


def ask_for_topic(cluster: Cluster, request: CreateTopicsRequest) -> CreatableTopicResult:
    answer: CreatableTopicResult
    (answer,) = cluster.call(request).topics
    return answer


def _refuse(wanted: Wanted, answer: CreatableTopicResult) -> None:
    if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        raise ClientError(
            f"topic {wanted.topic}: it exists already ({ErrorCode.TOPIC_ALREADY_EXISTS.name}); "
            "`moldau topics describe` shows it, --topic NAME chooses another name"
        )
    if answer.error_code == ErrorCode.INVALID_CONFIG:
        text = answer.error_message or "a configuration is invalid"
        raise ClientError(f"stream {wanted.stream}: {text}")
    if answer.error_code:
        raise refusal(f"topic {wanted.topic}", answer.error_code, answer.error_message)


def _adopted(
    cluster: Cluster, wanted: Wanted, made: CreatableTopicResult, created: bool
) -> dict[str, Any]:
    places = [TopicPartition(wanted.topic, number) for number in range(wanted.partitions)]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    if not starts.keys() == ends.keys() == set(places):
        raise ClientError(f"topic {wanted.topic}: it was created, and deleted by another client")
    bits = next(entry.value for entry in made.configs or () if entry.name == BITS)
    return {
        "topic": wanted.topic,
        "stream": wanted.stream,
        "value": wanted.value,
        "bits": int(bits or 0),
        "created": created,
        "partitions": [
            {
                "partition": place.partition,
                "stream": wanted.stream.replace("{topic}", wanted.topic).replace(
                    PARTITION, str(place.partition)
                ),
                "start_offset": starts[place],
                "end_offset": ends[place],
            }
            for place in places
        ],
    }


def _print(adopted: dict[str, Any]) -> None:
    bits = adopted["bits"]
    facts: dict[str, str | int | None] = {
        "topic": adopted["topic"],
        "stream": adopted["stream"] + (", created" if adopted["created"] else ""),
        "partitions": len(adopted["partitions"]),
        "bits": f"{bits}: up to {1 << bits:,} entries of one millisecond",
    }
    if adopted["value"] is not None:
        facts["value"] = f"field {adopted['value']}"
    for one in adopted["partitions"]:
        facts[f"offsets of {one['partition']}"] = f"{one['start_offset']} to {one['end_offset']}"
    print_facts(facts)
