"""`moldau topics adopt`: make a topic of a stream of Redis, without touching its data.

The broker does it when the topic is created: it looks at the stream's ids to choose how many bits
of an offset are the sequence, and refuses what is no stream. What is here asks for that, and says
what came of it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.errors import ErrorCode
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from ops.command_line import Action, positive, print_facts, print_json

TIMEOUT_MS = 60_000  # a long stream is read once from end to end
LONGEST_NAME = 249
LOOK = 0  # as the number of bits: choose by looking at the stream
PARTITION = "{partition}"
BITS = "moldau.native.sequence.bits"
# What is in the stream is somebody's: the broker's usual retention must not trim it.
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]+")


def add_adopt(add: Callable[[str, str, str, Action], argparse.ArgumentParser]) -> None:
    adopt = add(
        "adopt",
        "make a topic of a stream that is in Redis already, and leave its data as it is",
        "examples:\n  moldau topics adopt --stream sensors:raw\n"
        "  moldau topics adopt --stream sensors:raw --topic sensors --value payload\n"
        "  moldau topics adopt --stream 'orders:{partition}' --partitions 4\n\n"
        "entries are records: with the fields key, value, timestamp and header.NAME as they say,\n"
        "with other fields as a JSON object of them, or the field --value names. An entry MS-SEQ\n"
        "has the offset (MS << bits) | SEQ; bits are chosen so that every SEQ in the stream fits.\n"
        "Nothing is ever trimmed unless retention.ms or retention.bytes of the topic is set; the\n"
        "stream stays when the topic is deleted.\n",
        run_adopt,
    )
    adopt.add_argument(
        "--stream", required=True, metavar="KEY",
        help="its key in Redis; with {partition} in it, one stream for each partition",
    )  # fmt: skip
    adopt.add_argument("--topic", metavar="NAME", help="the topic's name (made of the key)")
    adopt.add_argument("--value", metavar="FIELD", help="the field that is a record's value")
    adopt.add_argument(
        "--partitions", type=positive, default=1, metavar="N",
        help="how many streams: {partition} is 0 to N-1 (1)",
    )  # fmt: skip
    adopt.add_argument(
        "--bits", type=_bits, default=LOOK, metavar="N",
        help="of an offset for the sequence, 1 to 20 (by looking at the stream, at least 10)",
    )  # fmt: skip
    adopt.add_argument(
        "--create", action="store_true", help="make the stream, empty, if it does not exist"
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
        raise ClientError(f"no topic name can be made of {stream!r}; give one with --topic NAME")
    if arguments.partitions > 1 and PARTITION not in stream:
        raise ClientError(
            f"{arguments.partitions} partitions need as many streams; "
            f"say where in --stream their number stands, such as '{stream}:{PARTITION}'"
        )
    wanted = Wanted(topic, stream, arguments.partitions, arguments.value)
    made, created = _adopt(cluster, wanted, arguments.bits, arguments.create)
    told = _told(cluster, wanted, made, created)
    if arguments.json:
        print_json(told)
        return 0
    if topic != stream and arguments.topic is None:
        print(f"the topic is named {topic}: a name may have a-z A-Z 0-9 . _ - in it\n")
    _print(told)
    return 0


def name_for(stream: str) -> str:
    """A topic's name made of a stream's key; empty when there is nothing to make it of."""
    name = _ILLEGAL.sub("-", stream.replace(PARTITION, "")).strip("-")
    return "" if name in (".", "..") else name[:LONGEST_NAME]


def _adopt(
    cluster: Cluster, wanted: Wanted, bits: int, create: bool
) -> tuple[CreatableTopicResult, bool]:
    """The topic, and whether its streams are new."""
    # With the bits given nothing makes the broker look whether the stream is there: ask first.
    made = _ask(cluster, wanted.request(LOOK, dry_run=bits != LOOK))
    missing = made.error_code == ErrorCode.RESOURCE_NOT_FOUND
    if missing and not create:
        raise ClientError(
            f"{made.error_message}; is --stream {wanted.stream} right? "
            "--create makes it, and so does an application that writes to it"
        )
    if missing and bits == LOOK and wanted.partitions > 1:
        # Those that exist may need more bits than usual, and cannot be looked at without the rest.
        raise ClientError(f"{made.error_message}, others may exist; give --bits as well")
    if missing or (bits != LOOK and not made.error_code):
        made = _ask(cluster, wanted.request(bits or None, dry_run=False))
    _refuse(wanted, made)
    return made, missing


def _ask(cluster: Cluster, request: CreateTopicsRequest) -> CreatableTopicResult:
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
        text = answer.error_message or "a configuration is refused"
        raise ClientError(f"stream {wanted.stream}: {text}")
    if answer.error_code:
        raise refusal(f"topic {wanted.topic}", answer.error_code, answer.error_message)


def _told(
    cluster: Cluster, wanted: Wanted, made: CreatableTopicResult, created: bool
) -> dict[str, Any]:
    places = [TopicPartition(wanted.topic, number) for number in range(wanted.partitions)]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    if not starts.keys() == ends.keys() == set(places):
        raise ClientError(f"topic {wanted.topic}: it was made, and deleted by somebody else")
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


def _print(told: dict[str, Any]) -> None:
    bits = told["bits"]
    facts: dict[str, str | int | None] = {
        "topic": told["topic"],
        "stream": told["stream"] + (", made just now" if told["created"] else ""),
        "partitions": len(told["partitions"]),
        "bits": f"{bits}: {1 << bits:,} entries of one millisecond have offsets of their own",
    }
    if told["value"] is not None:
        facts["value"] = f"field {told['value']}"
    for one in told["partitions"]:
        facts[f"offsets of {one['partition']}"] = f"{one['start_offset']} to {one['end_offset']}"
    print_facts(facts)
