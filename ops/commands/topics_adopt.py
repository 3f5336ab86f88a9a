"""`moldau topics adopt`: an existing Redis stream as a topic."""

from __future__ import annotations

import argparse

from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import AddAction, positive, print_facts, print_json
from moldau.ops.operations.adoption import (
    CHOOSE,
    PARTITION,
    AdoptedTopic,
    Adoption,
    adopt,
    name_for,
)


def add_adopt(add: AddAction) -> None:
    parser = add(
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
    parser.add_argument(
        "--stream", required=True, metavar="KEY",
        help="the stream's key; if it contains {partition}, one stream per partition",
    )  # fmt: skip
    parser.add_argument("--topic", metavar="NAME", help="name of the topic (derived from the key)")
    parser.add_argument("--value", metavar="FIELD", help="the field that is a record's value")
    parser.add_argument(
        "--partitions", type=positive, default=1, metavar="N",
        help="number of streams: {partition} is 0 to N-1 (1)",
    )  # fmt: skip
    parser.add_argument(
        "--bits", type=_bits, default=CHOOSE, metavar="N",
        help="bits of an offset for the sequence, 1 to 20 (by the stream's ids, at least 10)",
    )  # fmt: skip
    parser.add_argument(
        "--create", action="store_true", help="create the stream, empty, if it does not exist"
    )


def _bits(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 20:
        raise argparse.ArgumentTypeError(f"want a number from 1 to 20, got {text!r}")
    return number


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
    wanted = Adoption(topic, stream, arguments.partitions, arguments.value)
    adopted = adopt(cluster, wanted, arguments.bits, create=arguments.create)
    if arguments.json:
        print_json(adopted)
        return 0
    if topic != stream and arguments.topic is None:
        print(f"the topic is named {topic}: topic names consist of a-z A-Z 0-9 . _ -\n")
    _print(adopted)
    return 0


def _print(adopted: AdoptedTopic) -> None:
    bits = adopted.bits
    facts: dict[str, str | int | None] = {
        "topic": adopted.topic,
        "stream": adopted.stream + (", created" if adopted.created else ""),
        "partitions": len(adopted.partitions),
        "bits": f"{bits}: up to {1 << bits:,} entries of one millisecond",
    }
    if adopted.value is not None:
        facts["value"] = f"field {adopted.value}"
    for one in adopted.partitions:
        facts[f"offsets of {one.partition}"] = f"{one.start_offset} to {one.end_offset}"
    print_facts(facts)
