"""Which records are waited for: the first one a group has not committed, of each partition.

The leaders are asked for their timestamps. A timestamp never changes, so it is kept while the
record is waited for, and a group that stands still costs nothing. What is asked at a time is
bounded; the rest has its turn the next time. Pure.
"""

from __future__ import annotations

from moldau.broker.metrics.record_times import MAX_PLACES, Place, Times
from moldau.ops.http.lag import Lags

MAX_KNOWN = 100_000


class KnownTimes:
    def __init__(self) -> None:
        self.times: dict[Place, int] = {}  # milliseconds since 1970; -1: it has none
        self._turn = 0

    def wanted(self, lags: Lags) -> dict[int, list[Place]]:
        """What to ask, by leader. What is not waited for any more is forgotten."""
        known = self.times
        kept: dict[Place, int] = {}
        wanted: dict[int, dict[Place, None]] = {}
        for leader, place in lags.waiting():
            if place in known:
                if len(kept) < MAX_KNOWN:
                    kept[place] = known[place]
            else:
                wanted.setdefault(leader, {})[place] = None
        self.times = kept
        self._turn += 1
        return {leader: self._some(list(places)) for leader, places in wanted.items()}

    def _some(self, places: list[Place]) -> list[Place]:
        if len(places) <= MAX_PLACES:
            return places
        first = self._turn * MAX_PLACES % len(places)
        return (places[first:] + places[:first])[:MAX_PLACES]

    def answered(self, places: list[Place], times: Times) -> None:
        for place, found in zip(places, times, strict=False):
            if found is not None:
                self.times[place] = found
