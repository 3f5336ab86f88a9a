"""A job computes the target of a group from frozen facts, in slices.

The computation is a generator that yields often, so that the coordinator can return to the event
loop in between. Inside, members and partitions are numbers: a partition's number is its own plus
the first number of its topic. Nothing here refers to the group, which keeps changing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from moldau.broker.group.topics import TopicFacts, TopicIdPartition

SLICE = 256  # units of work between two yields: well below a millisecond

Steps: TypeAlias = Generator[None, None, "list[list[int]]"]
"""Yields between slices, and returns the partition numbers of each seat."""


class Seat(NamedTuple):
    """A member, as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    target: frozenset[TopicIdPartition]
    """The partitions it has now. The assignor keeps them as far as it can."""


class Table:
    """Numbers the partitions of all topics, and looks up subscriptions by number."""

    def __init__(self, seats: Sequence[Seat], topics: Sequence[TopicFacts]) -> None:
        self.seats = seats
        self.topics = topics
        self.first: list[int] = []
        self.size = 0
        for topic in topics:
            self.first.append(self.size)
            self.size += topic.partitions
        self.at = {topic.name: number for number, topic in enumerate(topics)}
        self._first_by_id = {
            topic.topic_id: (first, topic.partitions)
            for topic, first in zip(topics, self.first, strict=True)
        }
        self._subscriptions: dict[frozenset[str], tuple[int, ...]] = {}

    def numbers(self, partitions: frozenset[TopicIdPartition]) -> list[int]:
        """Return the sorted numbers of those partitions that still exist."""
        found = []
        by_id = self._first_by_id
        for topic_id, partition in partitions:
            known = by_id.get(topic_id)
            if known is not None and partition < known[1]:
                found.append(known[0] + partition)
        found.sort()
        return found

    def subscription(self, seat: Seat) -> tuple[int, ...]:
        """Return the numbers of its existing topics. Equal subscriptions share one tuple."""
        known = self._subscriptions.get(seat.topics)
        if known is None:
            at = self.at
            known = tuple(sorted(at[name] for name in seat.topics if name in at))
            self._subscriptions[seat.topics] = known
        return known

    @property
    def is_uniform(self) -> bool:
        """True if all seats subscribe to all of these topics."""
        every = tuple(range(len(self.topics)))
        return all(self.subscription(seat) == every for seat in self.seats)


Assignor: TypeAlias = Callable[[Table], Steps]


class Job(Struct, frozen=True):
    """Compute the target of an epoch."""

    group_id: str
    epoch: int
    assignor: Assignor
    seats: tuple[Seat, ...]
    topics: tuple[TopicFacts, ...]
    name: str = ""
    """The name of the assignor."""

    def statics(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.instance_id is not None]

    def steps(self) -> Generator[None, None, Mapping[str, frozenset[TopicIdPartition]]]:
        table = Table(self.seats, self.topics)
        yield
        numbers = yield from self.assignor(table)
        partitions: list[TopicIdPartition] = []
        for topic in self.topics:
            topic_id = topic.topic_id
            for start in range(0, topic.partitions, 4 * SLICE):
                end = min(start + 4 * SLICE, topic.partitions)
                partitions += [(topic_id, partition) for partition in range(start, end)]
                yield
        result: dict[str, frozenset[TopicIdPartition]] = {}
        done = 0
        for seat, mine in zip(self.seats, numbers, strict=True):
            target = frozenset([partitions[number] for number in mine])
            # Keep the same object where nothing changes: comparing it is then free.
            result[seat.member_id] = seat.target if seat.target == target else target
            done += len(mine) + 8
            if done > SLICE:
                done = 0
                yield
        return result
