"""The committed offsets of one group. `commits.py` decides who may commit and delete them.

Only durable offsets are kept here: a commit is checked, stored, and then applied, so OffsetFetch
never returns an offset that could still be lost. The offsets of open transactions are kept beside
them until a marker decides their fate (`pending_offsets.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec import Struct

NO_OFFSET = -1
NO_EPOCH = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class CommittedOffset(Struct, frozen=True, array_like=True):
    """A committed offset as it is stored and returned."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """Set only by OffsetCommit v2-4 with its own retention time."""


class Committer(Struct, frozen=True):
    """Who commits offsets of which partitions, as the request says."""

    member_id: str
    instance_id: str | None
    generation_id: int
    """The member epoch, in a group of the consumer protocol."""
    version: int = 9
    """The version of OffsetCommit."""
    partitions: Iterable[tuple[str | bytes, int]] = ()
    """Topics by name or id."""
    is_transactional: bool = False
    """TxnOffsetCommit."""


def new_commit(
    offset: int,
    now_ms: int,
    *,
    leader_epoch: int = NO_EPOCH,
    metadata: str | None = "",
    retention_time_ms: int = -1,
) -> CommittedOffset:
    """Build a commit from the fields of a request. -1 as `retention_time_ms` stands for the
    broker's retention, as in all requests from v5 on."""
    expires = None if retention_time_ms < 0 else now_ms + retention_time_ms
    return CommittedOffset(offset, leader_epoch, metadata or "", now_ms, expires)


class PendingOffset(Struct, frozen=True):
    """An offset that takes effect if its open transaction commits."""

    number: int
    """The number of the transaction."""
    order: int
    """Higher than the order of every commit of the group that was sent to the store before."""
    committed: CommittedOffset | None
    """None if a later commit has overtaken it: that commit stays, whatever the transaction's
    outcome."""


class PendingOffsets:
    """The offsets of open transactions in one group, by producer id and partition."""

    def __init__(self) -> None:
        self._of: dict[int, dict[TopicPartition, PendingOffset]] = {}
        self._producers: dict[TopicPartition, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def __iter__(self) -> Iterator[tuple[int, TopicPartition, PendingOffset]]:
        for producer_id, offsets in self._of.items():
            for partition, pending in offsets.items():
                yield producer_id, partition, pending

    def of(self, producer_id: int) -> Mapping[TopicPartition, PendingOffset]:
        return self._of.get(producer_id, {})

    def producers(self, partition: TopicPartition) -> AbstractSet[int]:
        """Return the producers whose open transactions have an offset of this partition."""
        return self._producers.get(partition, frozenset())

    def partitions(self) -> AbstractSet[TopicPartition]:
        return self._producers.keys()

    def add(self, producer_id: int, offsets: Mapping[TopicPartition, PendingOffset]) -> None:
        for partition, pending in offsets.items():
            self._of.setdefault(producer_id, {})[partition] = pending
            self._producers.setdefault(partition, set()).add(producer_id)

    def remove(self, producer_id: int, partition: TopicPartition) -> None:
        offsets = self._of.get(producer_id)
        if offsets is None or offsets.pop(partition, None) is None:
            return
        if not offsets:
            del self._of[producer_id]
        producers = self._producers[partition]
        producers.discard(producer_id)
        if not producers:
            del self._producers[partition]

    def overtake(self, partition: TopicPartition, order: int) -> None:
        """Mark pending offsets that were sent before this commit: they must not replace it."""
        for producer_id in self.producers(partition):
            pending = self._of[producer_id][partition]
            if pending.order < order:
                overtaken = PendingOffset(pending.number, pending.order, None)
                self._of[producer_id][partition] = overtaken


class CommittedOffsets:
    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None) -> None:
        self._offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.pending = PendingOffsets()
        self.apply(offsets or {})

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for topic, partitions in self._offsets.items():
            for partition, committed in partitions.items():
                yield TopicPartition(topic, partition), committed

    @property
    def is_empty(self) -> bool:
        """True if nothing is committed and no transaction can still commit anything."""
        return not self._offsets and not self.pending

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._offsets.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_pending(self, topic: str, partition: int) -> bool:
        """True if OffsetFetch with require_stable has to answer UNSTABLE_OFFSET_COMMIT."""
        return bool(self.pending) and TopicPartition(topic, partition) in self.pending.partitions()

    def topics(self) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Return all offsets by topic and partition, for an OffsetFetch of all topics."""
        return self._offsets

    def apply(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Apply commits that have been stored."""
        for (topic, partition), committed in offsets.items():
            self._offsets.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        """Forget an offset that is no longer stored."""
        partitions = self._offsets.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self._offsets[topic]

    def of_topic(self, topic: str) -> list[TopicPartition]:
        """Return the partitions to remove when this topic is deleted."""
        committed = [TopicPartition(topic, number) for number in self._offsets.get(topic, ())]
        pending = [one for one in self.pending.partitions() if one.topic == topic]
        return committed + [one for one in pending if self.get(*one) is None]
