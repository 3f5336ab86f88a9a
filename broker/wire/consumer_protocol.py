"""The consumers' embedded protocol, opaque to Kafka's brokers: what members of the protocol type
`consumer` subscribe to, and what they are assigned.

Every version of both messages begins like version 0, and only that part is read, so later versions
need no change here. Bytes that are something else give None.
"""

from __future__ import annotations

import struct

CONSUMER = "consumer"
"""The protocol type of consumers. The metadata of other types, Connect's for example, differs."""
_HEADER_SIZE = 6


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription."""
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
    """Topics and partitions of a ConsumerProtocolAssignment.

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


def _topic_count(data: bytes) -> int:
    version, count = struct.unpack_from(">hi", data)
    if version < 0 or count < 0:
        raise ValueError("not a version and a number of topics")
    return int(count)


def _string(data: bytes, at: int) -> tuple[str, int]:
    """A string, and where it ends."""
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise ValueError("a string that does not end")
    return data[at + 2 : end].decode(), end
