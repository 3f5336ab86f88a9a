"""Collects a snapshot: asks all processes for their reports, then leaders for the lag of groups.

Processes are asked over their unix sockets, all at once. A process that does not answer in time has
no report; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from moldau.broker.private.client import ask, ask_each
from moldau.broker.private.table import (
    MAX_BEHIND,
    MAX_RECORD_TIMES,
    METRICS,
    RECORD_COUNTS,
    RECORD_TIMES,
    Behind,
    RecordOffset,
)
from moldau.ops.http.lag import LagCache, Lags
from moldau.ops.http.snapshot import Snapshot, Status

PATIENCE_S = 1.0
TIMES_PATIENCE_S = 0.5
COUNTS_PATIENCE_S = 0.8


class Collector:
    def __init__(
        self, control_socket: str, worker_sockets: Sequence[str], router_sockets: Sequence[str]
    ) -> None:
        self._control_socket = control_socket
        self._workers = list(worker_sockets)
        self._routers = list(router_sockets)
        self._times = LagCache[RecordOffset](MAX_RECORD_TIMES)
        self._counts = LagCache[Behind](MAX_BEHIND)

    async def collect(self) -> Snapshot:
        snapshot = await self._ask_processes()
        lags = Lags(snapshot)
        async with asyncio.TaskGroup() as group:
            for leader, places in self._times.missing(lags.to_time()).items():
                group.create_task(self._ask_times(leader, places))
            for leader, behind in self._counts.missing(lags.to_count()).items():
                group.create_task(self._ask_counts(leader, behind))
        return msgspec.structs.replace(
            snapshot,
            times=self._times.answers,
            counts=self._counts.answers,
            clock_ms=int(time.time() * 1000),
        )

    async def _ask_processes(self) -> Snapshot:
        async with asyncio.TaskGroup() as group:
            status = group.create_task(self.status())
            paths = (*self._workers, *self._routers)
            reports = group.create_task(ask_each(paths, METRICS, None, PATIENCE_S))
        documents = reports.result()
        count = len(self._workers)
        return Snapshot(status.result(), documents[:count], documents[count:])

    async def status(self) -> Status | None:
        """The status that the supervisor reports; None while it does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_unix_connection(self._control_socket)
                try:
                    writer.write(b"status\n")
                    return msgspec.json.decode(await reader.read(), type=Status)
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError):
            return None

    async def _ask_times(self, leader: int, places: list[RecordOffset]) -> None:
        found = await ask(self._workers[leader], RECORD_TIMES, places, TIMES_PATIENCE_S)
        if found is not None:
            self._times.add(places, found)

    async def _ask_counts(self, leader: int, behind: list[Behind]) -> None:
        found = await ask(self._workers[leader], RECORD_COUNTS, behind, COUNTS_PATIENCE_S)
        if found is not None:
            self._counts.add(behind, found)
