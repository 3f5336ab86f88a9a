"""The lag of groups on native topics, in records.

Offsets of native topics are made of times, so the leader has to count records in the store. It can
be asked on the machine of the broker; elsewhere the lag is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.broker.metrics.record_counts import (
    MAX_BEHIND,
    RECORD_COUNTS,
    UNKNOWN,
    Behind,
    decode_counts,
    encode_behind,
)
from moldau.ops.client import Cluster, Node, TopicPartition
from moldau.ops.operations.local_workers import LocalWorkers
from moldau.ops.operations.topics import config_values

STORAGE = "moldau.storage"
ATTEMPTS = 5  # what is counted at a time is bounded


class NativeLags:
    """For the groups of one call of `describe`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workers: LocalWorkers | None = None  # looked for when one is to be asked
        self._is_native: dict[str, bool] = {}

    def native_among(self, topics: Iterable[str]) -> set[str]:
        """Those that are native; all are asked for at once."""
        wanted = set(topics)
        unknown = sorted(wanted - self._is_native.keys())
        if unknown:
            found = config_values(self._cluster, unknown, STORAGE)
            self._is_native |= {topic: found.get(topic) == "native" for topic in unknown}
        return {topic for topic in wanted if self._is_native[topic]}

    def lags(
        self, group_id: str, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Records at the committed offset and above; what is unknown is left out."""
        by_leader: dict[Node, list[Behind]] = {}
        for place, offset in committed.items():
            behind = (place.topic, place.partition, group_id, offset)
            by_leader.setdefault(self._cluster.leader(place), []).append(behind)
        found: dict[TopicPartition, int] = {}
        for leader, wanted in by_leader.items():
            for _ in range(ATTEMPTS):
                wanted = self._count(leader, wanted, found)
                if not wanted:
                    break
        return found

    def _count(
        self, leader: Node, wanted: list[Behind], found: dict[TopicPartition, int]
    ) -> list[Behind]:
        """Adds what was counted; returns what has to be asked again."""
        asked, later = wanted[:MAX_BEHIND], wanted[MAX_BEHIND:]
        if self._workers is None:
            self._workers = LocalWorkers(self._cluster)
        answer = self._workers.ask(leader, RECORD_COUNTS, encode_behind(asked))
        if answer is None:
            return []
        for behind, count in zip(asked, decode_counts(answer), strict=True):
            if count is None:
                later.append(behind)
            elif count != UNKNOWN:
                found[TopicPartition(behind[0], behind[1])] = count
        return later
