"""How far groups are behind: what their coordinators and the leaders of partitions report, joined.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.metrics.document import GroupRow, PartitionRow
from ops.http.reports import Reports


class Lag(NamedTuple):
    """Of a group in a partition with a committed offset."""

    topic: str
    partition: int
    offset: int  # the committed one
    records: int | None  # None: the leader of the partition has not reported it


class Lags:
    def __init__(self, reports: Reports) -> None:
        documents = [document for document in reports.workers if document is not None]
        self.partitions = [row for each in documents for row in each.partitions]
        self.groups = [row for each in documents for row in each.groups]
        self._rows: dict[tuple[str, int], PartitionRow] = {
            (row.topic, row.partition): row for row in self.partitions
        }

    def of(self, group: GroupRow) -> Iterator[Lag]:
        rows = self._rows
        for committed in group.committed:
            topic, partition, offset = committed.topic, committed.partition, committed.offset
            row = rows.get((topic, partition))
            # Records that retention removed are not behind: they are not there.
            records = None if row is None else max(row.end - max(offset, row.start), 0)
            yield Lag(topic, partition, offset, records)

    def records(self, group: GroupRow) -> int:
        """In all its partitions."""
        return sum(each.records or 0 for each in self.of(group))
