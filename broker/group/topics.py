"""Topics as groups see them: a look into memory, handed in by the coordinator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from msgspec import Struct


class TopicFacts(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int


Place: TypeAlias = tuple[bytes, int]
"""A partition: topic id and number. A topic that is deleted and made again has another id."""


class TopicsSeen(Struct, frozen=True):
    """The topics that exist. Tests pass their own."""

    by_name: Callable[[str], TopicFacts | None]
    by_id: Callable[[bytes], TopicFacts | None]
    names: Callable[[], Iterable[str]]


NO_TOPICS = TopicsSeen(lambda _: None, lambda _: None, lambda: ())


def by_topic(places: Iterable[Place]) -> dict[bytes, list[int]]:
    """Partitions by topic id, both in order. A member may have thousands: sorting numbers takes a
    fraction of what sorting places does."""
    topics: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in places:
        topics[topic_id].append(partition)
    for partitions in topics.values():
        partitions.sort()
    return {topic_id: topics[topic_id] for topic_id in sorted(topics)}
