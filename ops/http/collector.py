"""Asks all processes for their reports, then the leaders for what only they can look up: the ages
of what groups wait for, and how many records follow where offsets do not tell."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from moldau.broker.metrics.record_counts import RECORD_COUNTS, Behind, decode_counts, encode_behind
from moldau.broker.metrics.record_times import RECORD_TIMES, Place, decode_times, encode_places
from moldau.ops.http.known_counts import KnownCounts
from moldau.ops.http.lag import Lags
from moldau.ops.http.lag_cache import KnownTimes
from moldau.ops.http.snapshot import Reporters, Snapshot, ask_process

TIMES_PATIENCE_S = 0.5
COUNTS_PATIENCE_S = 0.8


class Collector:
    def __init__(self, reporters: Reporters) -> None:
        self._reporters = reporters
        self._known = KnownTimes()
        self._counts = KnownCounts()

    async def ask(self) -> Snapshot:
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

    async def _ask_times(self, leader: int, places: list[Place]) -> None:
        path = self._reporters.workers[leader]
        body = encode_places(places)
        found = await ask_process(path, RECORD_TIMES, body, TIMES_PATIENCE_S)
        if found is None:
            return
        with contextlib.suppress(ValueError):
            self._known.answered(places, decode_times(found))

    async def _ask_counts(self, leader: int, behind: list[Behind]) -> None:
        path = self._reporters.workers[leader]
        body = encode_behind(behind)
        found = await ask_process(path, RECORD_COUNTS, body, COUNTS_PATIENCE_S)
        if found is None:
            return
        with contextlib.suppress(ValueError):
            self._counts.answered(behind, decode_counts(found))
