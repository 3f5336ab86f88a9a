"""The consumers' embedded protocol, opaque to Kafka's brokers: the subscriptions and assignments of
members of the protocol type `consumer`.

Every version of both messages begins like the one before, and only known fields are read, so later
versions need no change here. Other bytes give None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

CONSUMER = "consumer"
"""The protocol type of consumers. The metadata of other types, Connect's for example, differs."""
_HEADER_SIZE = 6
_HIGHEST_VERSION = 3


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a ConsumerProtocolSubscription."""
    try:
        at = _HEADER_SIZE
        topics = []
        for _ in range(_topic_count(metadata)):
            topic, at = _string(metadata, at)
            topics.append(topic)
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """Return the topics and partitions of a ConsumerProtocolAssignment.

    A member without an assignment (the group is rebalancing) has no bytes at all.
    """
    if not assignment:
        return []
    try:
        at = _HEADER_SIZE
        assigned = []
        for _ in range(_topic_count(assignment)):
            topic, at = _string(assignment, at)
            (count,) = struct.unpack_from(">i", assignment, at)
            if count < 0:
                raise ValueError("a negative number of partitions")
            partitions = struct.unpack_from(f">{count}i", assignment, at + 4)
            assigned += [(topic, partition) for partition in partitions]
            at += 4 + 4 * count
    except (struct.error, ValueError):
        return None
    return assigned


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, int], ...]
    """Empty in version 0, and for members that give up everything before they join."""
    rack_id: str | None


def parse_subscription(metadata: bytes) -> Subscription | None:
    try:
        (version,) = struct.unpack_from(">h", metadata)
        at = _HEADER_SIZE
        topics = []
        for _ in range(_topic_count(metadata)):
            topic, at = _string(metadata, at)
            topics.append(topic)
        _, at = _bytes(metadata, at)
        owned: list[tuple[str, int]] = []
        rack_id = None
        if version >= 1:
            owned, at = _partitions(metadata, at)
        if version >= 2:
            at += 4  # the generation
        if version >= 3:
            (length,) = struct.unpack_from(">h", metadata, at)
            if length >= 0:
                rack_id, at = _string(metadata, at)
    except (struct.error, ValueError):
        return None
    return Subscription(version, tuple(topics), tuple(owned), rack_id)


class Assignment(NamedTuple):
    partitions: tuple[tuple[str, int], ...]
    user_data: bytes


def parse_assignment(assignment: bytes) -> Assignment | None:
    """Parse an assignment. No bytes at all mean that there is none yet."""
    if not assignment:
        return Assignment((), b"")
    try:
        _topic_count(assignment)
        partitions, at = _partitions(assignment, _HEADER_SIZE - 4)
        user_data, _ = _bytes(assignment, at)
    except (struct.error, ValueError):
        return None
    return Assignment(tuple(partitions), user_data)


def encode_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """Encode a ConsumerProtocolAssignment without user data, in a version that the member
    understands."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    parts = [struct.pack(">hi", min(version, _HIGHEST_VERSION), len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si", len(name), name, len(numbers)))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


def _partitions(data: bytes, at: int) -> tuple[list[tuple[str, int]], int]:
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    found = []
    for _ in range(count):
        topic, at = _string(data, at)
        (numbers,) = struct.unpack_from(">i", data, at)
        if numbers < 0:
            raise ValueError("a negative number of partitions")
        found += [(topic, number) for number in struct.unpack_from(f">{numbers}i", data, at + 4)]
        at += 4 + 4 * numbers
    return found, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return nullable bytes, null as empty, and where they end."""
    (length,) = struct.unpack_from(">i", data, at)
    end = at + 4 + max(length, 0)
    if end > len(data):
        raise ValueError("bytes that do not end")
    return data[at + 4 : end], end


def _topic_count(data: bytes) -> int:
    version, count = struct.unpack_from(">hi", data)
    if version < 0 or count < 0:
        raise ValueError("not a version and a number of topics")
    return int(count)


def _string(data: bytes, at: int) -> tuple[str, int]:
    """Return a string, and where it ends."""
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise ValueError("a string that does not end")
    return data[at + 2 : end].decode(), end
