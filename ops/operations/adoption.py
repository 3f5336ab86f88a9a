"""Adopting a Redis stream as a topic, its data left as it is.

The broker does the work when the topic is created: it reads the stream's ids to choose how many
bits of an offset are the sequence, and refuses a key that is not a stream.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.create_topics import CreatableTopicResult
from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.operations.topics import create_topics

TIMEOUT_MS = 60_000  # a long stream is read once from end to end
LONGEST_NAME = 249
CHOOSE = 0  # as the number of bits: the broker chooses by the ids in the stream
PARTITION = "{partition}"
BITS = "moldau.native.sequence.bits"
# The data belongs to the applications: the broker's default retention must not trim it.
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]+")


class Adoption(NamedTuple):
    """A stream, and the topic it becomes."""

    topic: str
    stream: str
    partitions: int
    value: str | None

    def request(self, cluster: Cluster, bits: int | None, *, dry_run: bool) -> CreatableTopicResult:
        """Create the topic; the answer may be an error."""
        configs = {"moldau.storage": "native", "moldau.native.key": self.stream, **KEEP_ALL}
        if bits is not None:
            configs[BITS] = str(bits)
        if self.value is not None:
            configs["moldau.native.value"] = self.value
        (answer,) = create_topics(
            cluster,
            [self.topic],
            self.partitions,
            configs.items(),
            dry_run=dry_run,
            timeout_ms=TIMEOUT_MS,
        )
        return answer


class AdoptedStream(msgspec.Struct, frozen=True):
    partition: int
    stream: str
    start_offset: int
    end_offset: int


class AdoptedTopic(msgspec.Struct, frozen=True):
    topic: str
    stream: str
    value: str | None
    bits: int
    created: bool  # whether the streams are new
    partitions: list[AdoptedStream]


def name_for(stream: str) -> str:
    """A topic name derived from a stream's key; empty when none can be."""
    name = _ILLEGAL.sub("-", stream.replace(PARTITION, "")).strip("-")
    return "" if name in (".", "..") else name[:LONGEST_NAME]


def chosen_bits(made: CreatableTopicResult) -> int:
    return next((int(each.value or 0) for each in made.configs or () if each.name == BITS), 0)


def adopt(cluster: Cluster, wanted: Adoption, bits: int, *, create: bool) -> AdoptedTopic:
    """`create`: the streams if they do not exist. Raises ClientError."""
    # With the bits given the broker does not check that the stream exists: ask first.
    made = wanted.request(cluster, CHOOSE, dry_run=bits != CHOOSE)
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
        made = wanted.request(cluster, bits or None, dry_run=False)
    _refuse(wanted, made)
    return _adopted(cluster, wanted, made, missing)


def _refuse(wanted: Adoption, answer: CreatableTopicResult) -> None:
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
    cluster: Cluster, wanted: Adoption, made: CreatableTopicResult, created: bool
) -> AdoptedTopic:
    places = [TopicPartition(wanted.topic, number) for number in range(wanted.partitions)]
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    if not starts.keys() == ends.keys() == set(places):
        raise ClientError(f"topic {wanted.topic}: it was created, and deleted by another client")
    pattern = wanted.stream.replace("{topic}", wanted.topic)
    return AdoptedTopic(
        wanted.topic,
        wanted.stream,
        wanted.value,
        chosen_bits(made),
        created,
        [
            AdoptedStream(
                place.partition,
                pattern.replace(PARTITION, str(place.partition)),
                starts[place],
                ends[place],
            )
            for place in places
        ],
    )
