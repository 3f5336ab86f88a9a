"""The last hour of a broker, in memory: what charts are drawn from. Pure."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import msgspec

from ops.http.lag import Lags
from ops.http.reports import Reports

MAX_GROUPS = 1_000  # of a worker, in each point
POINTS = 720  # an hour, at one in five seconds


class Point(msgspec.Struct, frozen=True):
    at: float
    clock: float  # seconds since 1970
    lags: dict[str, int]  # by group
    ends: dict[str, int]  # by topic, the ends of its partitions added up
    requests: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


def lags_of(reports: Reports) -> dict[str, int]:
    """By group, how many records it is behind in all its partitions."""
    lags = Lags(reports)
    return {
        group.group: lags.records(group)
        for document in reports.workers
        for group in (document.groups[:MAX_GROUPS] if document is not None else ())
    }


class History:
    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)

    def add(self, now: float, clock: float, reports: Reports) -> None:
        ends: dict[str, int] = {}
        totals = {"moldau_kafka_requests_total": 0.0, "moldau_topic_bytes_in_total": 0.0,
                  "moldau_topic_bytes_out_total": 0.0}  # fmt: skip
        for document in reports.workers:
            if document is None:
                return  # sums without it would go back, and rates below zero
            for row in document.partitions:
                ends[row.topic] = ends.get(row.topic, 0) + row.end
            for family in document.families:
                if family.name in totals:
                    totals[family.name] += sum(sample.value for sample in family.samples)
        self.points.append(Point(now, clock, lags_of(reports), ends, *totals.values()))

    def lags(self, group: str) -> list[tuple[int, int]]:
        """Times in milliseconds, and the lag of a group."""
        return [
            (int(point.clock * 1000), point.lags[group])
            for point in self.points
            if group in point.lags
        ]

    def record_rates(self, topic: str | None = None) -> list[float]:
        """Records a second between one point and the next, of a topic or of all together."""

        def end(point: Point) -> int:
            return sum(point.ends.values()) if topic is None else point.ends.get(topic, 0)

        return self._rates([(point.at, float(end(point))) for point in self.points])

    def request_rates(self) -> list[float]:
        return self._rates([(point.at, point.requests) for point in self.points])

    def _rates(self, values: list[tuple[float, float]]) -> list[float]:
        return [
            max(after - before, 0.0) / (to - since) if to > since else 0.0
            for (since, before), (to, after) in pairwise(values)
        ]
