"""How many records groups are behind, where the leader has to count them.

A count is kept while neither the group nor the stream has moved. What is asked at a time is
bounded; the rest has its turn the next time, and is unknown until then. Pure.
"""

from __future__ import annotations

from moldau.broker.private.table import MAX_BEHIND, Behind, Counts
from moldau.ops.http.lag import Lags

State = tuple[int, int]  # of a stream: its end, and how many records it has


class KnownCounts:
    def __init__(self) -> None:
        self._known: dict[Behind, tuple[State, int]] = {}
        self._states: dict[Behind, State] = {}
        self._turn = 0

    @property
    def counts(self) -> dict[Behind, int]:
        return {behind: count for behind, (_, count) in self._known.items()}

    def wanted(self, lags: Lags) -> dict[int, list[Behind]]:
        """What to ask, by leader. What is out of date is forgotten."""
        kept: dict[Behind, tuple[State, int]] = {}
        wanted: dict[int, list[Behind]] = {}
        self._states = {}
        for row, behind in lags.to_count():
            state = row.end, row.records
            known = self._known.get(behind)
            if known is not None and known[0] == state:
                kept[behind] = known
            else:
                wanted.setdefault(row.leader, []).append(behind)
                self._states[behind] = state
        self._known = kept
        self._turn += 1
        return {leader: self._some(places) for leader, places in wanted.items()}

    def _some(self, places: list[Behind]) -> list[Behind]:
        if len(places) <= MAX_BEHIND:
            # Those that were not reached the last time come first some time.
            first = self._turn % len(places)
        else:
            first = self._turn * MAX_BEHIND % len(places)
        return (places[first:] + places[:first])[:MAX_BEHIND]

    def answered(self, places: list[Behind], counts: Counts) -> None:
        for behind, count in zip(places, counts, strict=False):
            if count is not None:
                self._known[behind] = self._states[behind], count
