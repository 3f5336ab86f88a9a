"""The lag of a group in records, as `groups describe` and the page of a group show it.

Mostly it is the difference of two offsets. Offsets of native topics are times, so their leader
counts records; offsets that a log never had, or lost, are gaps, which its leader reports. Leaders
can be asked on the machine of the broker: elsewhere the lag of a native topic is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.broker.private.table import MAX_BEHIND, RECORD_COUNTS, UNKNOWN, Behind
from moldau.ops.client import Cluster, TopicPartition
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.configs import config_values

STORAGE = "moldau.storage"
ATTEMPTS = 5  # a leader counts for a bounded time at once

# The committed offset of a partition, and its end.
Positions = Mapping[TopicPartition, tuple[int, int]]


class LagCounter:
    def __init__(self, cluster: Cluster, workers: LocalWorkers) -> None:
        self._cluster = cluster
        self._workers = workers
        self._is_native: dict[str, bool] = {}

    def native_among(self, topics: Iterable[str]) -> set[str]:
        """The native ones, by reports that are known or by their configuration."""
        wanted = set(topics)
        if wanted - self._is_native.keys():
            for row in self._workers.known_rows():
                self._is_native[row.topic] = not row.has_consecutive_offsets
        unknown = sorted(wanted - self._is_native.keys())
        if unknown:
            found = config_values(self._cluster, unknown, STORAGE)
            self._is_native |= {topic: found.get(topic) == "native" for topic in unknown}
        return {topic for topic in wanted if self._is_native[topic]}

    def lags(self, group_id: str, positions: Positions) -> dict[TopicPartition, int | None]:
        """Records from the committed offset to the end; None where it is unknown."""
        lags: dict[TopicPartition, int | None] = {
            place: max(end - offset, 0) for place, (offset, end) in positions.items()
        }
        behind = {place: positions[place] for place, lag in lags.items() if lag}
        natives = self.native_among(place.topic for place in behind)
        native = {place: at for place, at in behind.items() if place.topic in natives}
        lags |= self._without_gaps({p: at for p, at in behind.items() if p not in native})
        return lags | dict.fromkeys(native) | self._counted(group_id, native)

    def _without_gaps(self, behind: Positions) -> dict[TopicPartition, int]:
        topics = self._cluster.topics(sorted({place.topic for place in behind}))
        leaders = {
            place: one.leader_id
            for topic in topics.values()
            for one in topic.partitions
            # In epoch 0 nothing was lost: the leader need not be asked.
            if one.leader_epoch > 0
            and (place := TopicPartition(topic.name or "", one.partition_index)) in behind
        }
        rows = self._workers.rows(leaders)
        return {place: row.count(*behind[place]) for place, row in rows.items()}

    def _counted(self, group_id: str, behind: Positions) -> dict[TopicPartition, int]:
        by_leader: dict[int, list[Behind]] = {}
        for place, (offset, _) in behind.items():
            leader = self._cluster.leader(place).node_id
            by_leader.setdefault(leader, []).append((*place, group_id, offset))
        found: dict[TopicPartition, int] = {}
        for leader, wanted in by_leader.items():
            for _ in range(ATTEMPTS):
                wanted = self._count(leader, wanted, found)
                if not wanted:
                    break
        return found

    def _count(
        self, leader: int, wanted: list[Behind], found: dict[TopicPartition, int]
    ) -> list[Behind]:
        """Add the counts; returns the questions that have to be asked again."""
        asked, later = wanted[:MAX_BEHIND], wanted[MAX_BEHIND:]
        answer = self._workers.ask(leader, RECORD_COUNTS, asked)
        if answer is None:
            return []
        for behind, count in zip(asked, answer, strict=True):
            if count is None:
                later.append(behind)
            elif count != UNKNOWN:
                found[TopicPartition(behind[0], behind[1])] = count
        return later
