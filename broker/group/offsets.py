"""The committed offsets of one group. Who may commit and delete them is decided in `commits.py`.

Holds what is durable: a commit is checked, stored, and only then applied here, so OffsetFetch never
returns an offset that could still be lost. Offsets of open transactions are kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

NO_OFFSET = -1
NO_EPOCH = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class CommittedOffset(Struct, frozen=True, array_like=True):
    """What a member committed, as it is stored and returned."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """Only for OffsetCommit v2-4 with its own retention time."""


def new_commit(
    offset: int,
    now_ms: int,
    *,
    leader_epoch: int = NO_EPOCH,
    metadata: str | None = "",
    retention_time_ms: int = -1,
) -> CommittedOffset:
    """From the fields of a request. `retention_time_ms` -1: the broker's retention, as from v5."""
    expires = None if retention_time_ms < 0 else now_ms + retention_time_ms
    return CommittedOffset(offset, leader_epoch, metadata or "", now_ms, expires)


class CommittedOffsets:
    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None) -> None:
        self._offsets: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        """By producer id: offsets of open transactions."""
        self.apply(offsets or {})

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for topic, partitions in self._offsets.items():
            for partition, committed in partitions.items():
                yield TopicPartition(topic, partition), committed

    @property
    def is_empty(self) -> bool:
        """Nothing committed, and nothing that a transaction could still commit."""
        return not self._offsets and not self._pending

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._offsets.get(topic)
        return None if partitions is None else partitions.get(partition)

    def topics(self) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """All offsets by topic and partition, for OffsetFetch of all topics."""
        return self._offsets

    def apply(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These have been stored."""
        for (topic, partition), committed in offsets.items():
            self._offsets.setdefault(topic, {})[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        """This one is no longer stored."""
        partitions = self._offsets.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self._offsets[topic]

    def of_topic(self, topic: str) -> list[TopicPartition]:
        """The partitions to remove when this topic is deleted."""
        return [TopicPartition(topic, partition) for partition in self._offsets.get(topic, ())]

    # --- offsets of transactions (TxnOffsetCommit) ---

    def add_pending(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._pending.setdefault(producer_id, {}).update(offsets)

    def pending_of(self, producer_id: int) -> Mapping[TopicPartition, CommittedOffset]:
        """What to store when this producer's transaction commits."""
        return self._pending.get(producer_id, {})

    def end_transaction(self, producer_id: int) -> None:
        """Committed, and its offsets applied; or aborted."""
        self._pending.pop(producer_id, None)

    def is_pending(self, topic: str, partition: int) -> bool:
        """OffsetFetch with require_stable gets UNSTABLE_OFFSET_COMMIT."""
        key = (topic, partition)
        return any(key in offsets for offsets in self._pending.values())
