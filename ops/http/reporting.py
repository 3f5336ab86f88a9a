"""Asks all processes for their reports, then the leaders for what only they can look up: the ages
of what groups wait for, and how many records follow where offsets do not tell."""

from __future__ import annotations

import asyncio
import time

import msgspec

from moldau.broker.private.client import ask
from moldau.broker.private.table import RECORD_COUNTS, RECORD_TIMES, Behind, RecordOffset
from moldau.ops.http.known_counts import KnownCounts
from moldau.ops.http.known_times import KnownTimes
from moldau.ops.http.lag import Lags
from moldau.ops.http.reports import Reporters, Reports

TIMES_PATIENCE_S = 0.5
COUNTS_PATIENCE_S = 0.8


class Reporting:
    def __init__(self, reporters: Reporters) -> None:
        self._reporters = reporters
        self._known = KnownTimes()
        self._counts = KnownCounts()

    async def ask(self) -> Reports:
        reports = await self._reporters.ask_all()
        lags = Lags(reports)
        async with asyncio.TaskGroup() as group:
            for leader, places in self._known.wanted(lags).items():
                group.create_task(self._ask_times(leader, places))
            for leader, behind in self._counts.wanted(lags).items():
                group.create_task(self._ask_counts(leader, behind))
        clock_ms = int(time.time() * 1000)
        return msgspec.structs.replace(
            reports, times=self._known.times, clock_ms=clock_ms, counts=self._counts.counts
        )

    async def _ask_times(self, leader: int, places: list[RecordOffset]) -> None:
        path = self._reporters.workers[leader]
        found = await ask(path, RECORD_TIMES, places, TIMES_PATIENCE_S)
        if found is not None:
            self._known.answered(places, found)

    async def _ask_counts(self, leader: int, behind: list[Behind]) -> None:
        path = self._reporters.workers[leader]
        found = await ask(path, RECORD_COUNTS, behind, COUNTS_PATIENCE_S)
        if found is not None:
            self._counts.answered(behind, found)
