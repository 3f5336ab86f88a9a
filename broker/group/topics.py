"""Topics as groups see them: lookups in memory that the coordinator provides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct


class TopicFacts(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int


TopicIdPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition number. A topic that is deleted and created again gets another id."""
PartitionEpochs: TypeAlias = Mapping[TopicIdPartition, int]
"""The member epoch in which each partition was assigned."""


class TopicLookup(Struct, frozen=True):
    """Looks up the topics that exist. Tests pass their own."""

    by_name: Callable[[str], TopicFacts | None]
    by_id: Callable[[bytes], TopicFacts | None]
    names: Callable[[], Iterable[str]]


NO_TOPICS = TopicLookup(lambda _: None, lambda _: None, lambda: ())


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Return sorted partition numbers by topic id, in order. A member may have thousands, and
    sorting plain numbers takes a fraction of the time."""
    topics: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in partitions:
        topics[topic_id].append(partition)
    for numbers in topics.values():
        numbers.sort()
    return {topic_id: topics[topic_id] for topic_id in sorted(topics)}
