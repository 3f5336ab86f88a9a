"""Looking into a request without decoding it: the few fields that say where it goes.

Everything here works on the head of a frame, which may end anywhere: reading past what has come
raises IndexError or struct.error, and the caller waits for more. Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.wire.primitives import read_uvarint, skip_tags

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
ID_SIZE = 16

PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 21, 23
# More partitions than this in one Produce are not looked at one by one.
MOST_WALKED = 64


class Place(NamedTuple):
    """A partition as a request names it: the topic by its name, or by its id."""

    topic: bytes
    partition: int


class Produced(NamedTuple):
    """What a Produce request says about itself."""

    acks: int
    first: Place | None
    # Every partition, when that is known; None: there are more than were looked at.
    places: list[Place] | None
    # Where the first one ends when it is the only one, else 0.
    end: int = 0


def string(head: bytes, at: int, flexible: bool) -> tuple[bytes | None, int]:
    """A string (compact when flexible) and the position after it."""
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
        raise IndexError("a string goes on past what has come")
    return head[at:end], end


def count(head: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """The length of an array and the position of its first element."""
    if flexible:
        number, at = read_uvarint(head, at)
        return number - 1, at
    (number,) = _INT32.unpack_from(head, at)
    return number, at + 4


def _topic(head: bytes, at: int, flexible: bool, by_id: bool) -> tuple[bytes, int]:
    if not by_id:
        name, at = string(head, at, flexible)
        return name or b"", at
    end = at + ID_SIZE
    if end > len(head):
        raise IndexError("a topic id goes on past what has come")
    return head[at:end], end


def before_topics(key: int, version: int) -> int:
    """How many bytes of fixed size stand before the topics of a request that names partitions."""
    if key == FETCH:
        # Replica id, longest wait, fewest and most bytes, isolation level, session id and epoch.
        return (4 if version <= 14 else 0) + 13 + (8 if version >= 7 else 0)
    if key == LIST_OFFSETS:
        return 4 + (1 if version >= 2 else 0)  # replica id, isolation level
    if key == OFFSET_FOR_LEADER_EPOCH:
        return 4 if version >= 3 else 0  # replica id
    return 0  # DeleteRecords


def names_topics_by_id(key: int, version: int) -> bool:
    return key in (PRODUCE, FETCH) and version >= 13


def first_place(head: bytes, at: int, flexible: bool, by_id: bool) -> tuple[Place | None, int]:
    """The first partition of an array of topics that begins at `at`, None when there is none, and
    the position after what says so."""
    topics, at = count(head, at, flexible)
    if topics <= 0:
        return None, at
    topic, at = _topic(head, at, flexible, by_id)
    partitions, at = count(head, at, flexible)
    if partitions <= 0:
        return Place(topic, 0), at
    (partition,) = _INT32.unpack_from(head, at)
    return Place(topic, partition), at + 4


def produced(head: bytes, at: int, version: int, flexible: bool, size: int) -> Produced:
    """What a Produce whose body begins at `at` asks for; `size` is that of the whole frame."""
    if version >= 3:
        _, at = string(head, at, flexible)  # transactional id
    (acks,) = _INT16.unpack_from(head, at)
    at += 6  # and the timeout
    by_id = version >= 13
    topics, inside = count(head, at, flexible)
    if topics <= 0:
        return Produced(acks, None, [])
    topic, inside = _topic(head, inside, flexible, by_id)
    partitions, inside = count(head, inside, flexible)
    first = Place(topic, _INT32.unpack_from(head, inside)[0] if partitions > 0 else 0)
    if topics == 1 and partitions <= 1:  # nearly always: nothing to walk over
        return Produced(acks, first, [first], inside + 4 if partitions == 1 else 0)
    try:
        places = _walk(head, at, flexible, by_id, size)
    except (IndexError, struct.error):
        if len(head) == size:
            raise
        places = None  # too large to have come whole
    # A topic may name no partition.
    return Produced(acks, places[0] if places else first, places)


def _walk(head: bytes, at: int, flexible: bool, by_id: bool, size: int) -> list[Place] | None:
    """Every partition of a Produce: from one to the next by the lengths of their records."""
    places = []
    topics, at = count(head, at, flexible)
    for number in range(topics):
        topic, at = _topic(head, at, flexible, by_id)
        partitions, at = count(head, at, flexible)
        for index in range(partitions):
            (partition,) = _INT32.unpack_from(head, at)
            places.append(Place(topic, partition))
            if number == topics - 1 and index == partitions - 1:
                return places  # the usual case, one partition: its records need not be here
            if len(places) > MOST_WALKED:
                return None
            records, at = count(head, at + 4, flexible)
            at += max(records, 0)
            if flexible:
                at = _skip_tags(head, at, size)
        if flexible:
            at = _skip_tags(head, at, size)
    return places


def _skip_tags(head: bytes, at: int, size: int) -> int:
    tags = head[at]
    if tags == 0:
        return at + 1
    tags, at = read_uvarint(head, at)
    return skip_tags(head, at, size, tags)
