"""The last hour of a broker, in memory, for charts. Pure.

A value is kept only where it changed: thousands of topics and groups that stand still cost nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Set
from itertools import pairwise, zip_longest
from typing import NamedTuple

from moldau.ops.http.lag import Lags
from moldau.ops.http.snapshot import Snapshot

MAX_SERIES = 5_000  # of topics, and of groups
POINTS = 720  # an hour, at one in five seconds


class Point(NamedTuple):
    number: int
    at: float
    clock: float  # seconds since 1970
    records: int  # that all topics ever had
    requests: float = 0.0


class Series:
    """A value by the number of a point; from one to the next it stays."""

    __slots__ = ("numbers", "seen", "values")

    def __init__(self) -> None:
        self.numbers = array("q")
        self.values = array("q")
        self.seen = 0  # the last point that had it

    def add(self, number: int, value: int) -> None:
        self.seen = number
        if not self.values or self.values[-1] != value:
            self.numbers.append(number)
            self.values.append(value)
            if len(self.values) > POINTS:
                del self.numbers[0], self.values[0]

    def between(self, first: int, after: int) -> list[tuple[int, int]]:
        """Numbers and values, one for each point that had it."""
        found = []
        at = 0
        for number in range(max(first, self.numbers[0]), min(after, self.seen + 1)):
            while at + 1 < len(self.numbers) and self.numbers[at + 1] <= number:
                at += 1
            found.append((number, self.values[at]))
        return found


class History:
    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._records: dict[str, Series] = {}  # by topic, how many it ever had
        self._lags: dict[str, Series] = {}  # by group, in records, where that is known
        self.topics_of: dict[str, set[str]] = {}  # by group, those it has committed offsets of
        self._next = 0

    def add(self, now: float, clock: float, snapshot: Snapshot) -> None:
        if any(document is None for document in snapshot.workers):
            return  # sums without it would go back, and rates below zero
        number, self._next = self._next, self._next + 1
        lags = Lags(snapshot)
        records: dict[str, int] = {}
        for row in lags.partitions:
            records[row.topic] = records.get(row.topic, 0) + row.added
        requests = sum(
            sample.value
            for document in snapshot.workers
            for family in (document.families if document is not None else ())
            if family.name == "moldau_kafka_requests_total"
            for sample in family.samples
        )
        self.points.append(Point(number, now, clock, sum(records.values()), requests))
        _add(self._records, number, records)
        _add(self._lags, number, _known(lags))
        self.topics_of = {
            group.group: {committed.topic for committed in group.committed}
            for group in lags.groups[:MAX_SERIES]
        }

    def lags(self, group: str) -> list[tuple[int, int]]:
        """Times in milliseconds, and the lag of a group."""
        series = self._lags.get(group)
        if series is None or not self.points:
            return []
        first = self.points[0].number
        return [
            (int(self.points[number - first].clock * 1000), lag)
            for number, lag in series.between(first, self._next)
        ]

    def record_rates(
        self, topic: str | None = None, most: int = POINTS, among: Set[str] | None = None
    ) -> list[float]:
        """Records a second between one point and the next, of a topic or of all together; `among`:
        of these."""
        if among is not None:
            each = [self.record_rates(name) for name in sorted(among) if name in self._records]
            backwards = zip_longest(*(rates[::-1] for rates in each), fillvalue=0.0)
            return [sum(rates) for rates in backwards][::-1]
        if topic is None:
            return _rates([(point.at, float(point.records)) for point in self.points])
        series = self._records.get(topic)
        if series is None or not self.points:
            return []
        first = self.points[0].number
        since = max(first, self._next - most - 1)
        return _rates(
            [
                (self.points[number - first].at, float(value))
                for number, value in series.between(since, self._next)
            ]
        )

    def request_rates(self) -> list[float]:
        return _rates([(point.at, point.requests) for point in self.points])


def _known(lags: Lags) -> dict[str, int]:
    found = ((group.group, lags.records(group)) for group in lags.groups[:MAX_SERIES])
    return {name: lag for name, lag in found if lag is not None}


def _add(series: dict[str, Series], number: int, values: dict[str, int]) -> None:
    for name, value in values.items():
        found = series.get(name)
        if found is None:
            if len(series) >= MAX_SERIES:
                continue
            found = series[name] = Series()
        found.add(number, value)
    if number % 60 == 0:  # what was deleted is forgotten after an hour
        for name in [name for name, each in series.items() if each.seen < number - POINTS]:
            del series[name]


def _rates(values: list[tuple[float, float]]) -> list[float]:
    return [
        max(after - before, 0.0) / (to - since) if to > since else 0.0
        for (since, before), (to, after) in pairwise(values)
    ]
