"""Reads the few fields of a request that decide where it goes, without decoding the request.

All functions work on the head of a frame, which may end anywhere: reading past the received bytes
raises IndexError or struct.error, and the caller waits for more. Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.primitives import read_uvarint, skip_tags

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
TOPIC_ID_SIZE = 16

# These are compared for every request: module names are cheaper than members of the enum.
PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH = ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH
TXN_OFFSET_COMMIT = ApiKey.TXN_OFFSET_COMMIT
# A Produce to more partitions than this is not walked to its end.
MAX_PARTITIONS_WALKED = 64


class TopicPartition(NamedTuple):
    """A partition as a request names it: the topic by name or by id."""

    topic: bytes
    partition: int


class ProduceFields(NamedTuple):
    acks: int
    first: TopicPartition | None
    # Every partition of the request; None if not all of them were read.
    partitions: list[TopicPartition] | None
    # Where the first partition ends if it is the only one, otherwise 0.
    end: int = 0


def read_string(head: bytes, at: int, flexible: bool) -> tuple[bytes | None, int]:
    """Return a string (compact if flexible) and the position after it."""
    if flexible:
        size, at = read_uvarint(head, at)
        size -= 1
    else:
        (size,) = _INT16.unpack_from(head, at)
        at += 2
    if size < 0:
        return None, at
    end = at + size
    if end > len(head):
        raise IndexError("a string continues past the received bytes")
    return head[at:end], end


def read_count(head: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Return the length of an array and the position of its first element."""
    if flexible:
        number, at = read_uvarint(head, at)
        return number - 1, at
    (number,) = _INT32.unpack_from(head, at)
    return number, at + 4


def _read_topic(head: bytes, at: int, flexible: bool, by_id: bool) -> tuple[bytes, int]:
    if not by_id:
        name, at = read_string(head, at, flexible)
        return name or b"", at
    end = at + TOPIC_ID_SIZE
    if end > len(head):
        raise IndexError("a topic id continues past the received bytes")
    return head[at:end], end


def size_before_topics(key: int, version: int) -> int:
    """Return the size of the fixed fields that precede the topics of a request that names
    partitions."""
    if key == FETCH:
        # Replica id, max wait, min and max bytes, isolation level, session id and epoch.
        return (4 if version <= 14 else 0) + 13 + (8 if version >= 7 else 0)
    if key == LIST_OFFSETS:
        return 4 + (1 if version >= 2 else 0)  # replica id, isolation level
    if key == OFFSET_FOR_LEADER_EPOCH:
        return 4 if version >= 3 else 0  # replica id
    return 0  # DeleteRecords, DescribeProducers


def names_topics_by_id(key: int, version: int) -> bool:
    return key in (PRODUCE, FETCH) and version >= 13


def read_first_partition(
    head: bytes, at: int, flexible: bool, by_id: bool
) -> tuple[TopicPartition | None, int]:
    """Return the first partition of an array of topics at `at` (None if there is no topic), and the
    position after the fields read for it."""
    topics, at = read_count(head, at, flexible)
    if topics <= 0:
        return None, at
    topic, at = _read_topic(head, at, flexible, by_id)
    partitions, at = read_count(head, at, flexible)
    if partitions <= 0:
        return TopicPartition(topic, 0), at
    (partition,) = _INT32.unpack_from(head, at)
    return TopicPartition(topic, partition), at + 4


def read_produce(head: bytes, at: int, version: int, flexible: bool, size: int) -> ProduceFields:
    """Read the fields of a Produce whose body begins at `at`; `size` is the size of the whole
    frame."""
    if version >= 3:
        _, at = read_string(head, at, flexible)  # transactional id
    (acks,) = _INT16.unpack_from(head, at)
    at += 6  # acks and timeout
    by_id = names_topics_by_id(PRODUCE, version)
    topics, inside = read_count(head, at, flexible)
    if topics <= 0:
        return ProduceFields(acks, None, [])
    topic, inside = _read_topic(head, inside, flexible, by_id)
    partitions, inside = read_count(head, inside, flexible)
    first = TopicPartition(topic, _INT32.unpack_from(head, inside)[0] if partitions > 0 else 0)
    if topics == 1 and partitions <= 1:  # the usual case: nothing to walk over
        return ProduceFields(acks, first, [first], inside + 4 if partitions == 1 else 0)
    try:
        found = _walk_partitions(head, at, flexible, by_id, size)
    except (IndexError, struct.error):
        if len(head) == size:
            raise
        found = None  # the frame has not been received completely
    # The first topic may name no partition.
    return ProduceFields(acks, found[0] if found else first, found)


def _walk_partitions(
    head: bytes, at: int, flexible: bool, by_id: bool, size: int
) -> list[TopicPartition] | None:
    """Return every partition of a Produce, skipping the records between them by their lengths."""
    found = []
    topics, at = read_count(head, at, flexible)
    for number in range(topics):
        topic, at = _read_topic(head, at, flexible, by_id)
        partitions, at = read_count(head, at, flexible)
        for index in range(partitions):
            (partition,) = _INT32.unpack_from(head, at)
            found.append(TopicPartition(topic, partition))
            if number == topics - 1 and index == partitions - 1:
                return found  # the records of the last one need not be received yet
            if len(found) > MAX_PARTITIONS_WALKED:
                return None
            records, at = read_count(head, at + 4, flexible)
            at += max(records, 0)
            if flexible:
                at = _skip_tags(head, at, size)
        if flexible:
            at = _skip_tags(head, at, size)
    return found


def _skip_tags(head: bytes, at: int, size: int) -> int:
    tags = head[at]
    if tags == 0:
        return at + 1
    tags, at = read_uvarint(head, at)
    return skip_tags(head, at, size, tags)
