"""Collects a snapshot: asks all processes for their reports, then leaders for the lag of groups.

Processes are asked over their unix sockets, all at once. A process that does not answer in time has
no report; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Sequence

import msgspec

from moldau.broker.metrics.document import METRICS, Document, decode
from moldau.broker.metrics.record_counts import (
    MAX_BEHIND,
    RECORD_COUNTS,
    Behind,
    decode_counts,
    encode_behind,
)
from moldau.broker.metrics.record_times import (
    MAX_PLACES,
    RECORD_TIMES,
    Place,
    decode_times,
    encode_places,
)
from moldau.broker.wire.frame import LENGTH, private_frame
from moldau.ops.http.lag import Lags
from moldau.ops.http.lag_cache import LagCache
from moldau.ops.http.snapshot import Snapshot, Status

PATIENCE_S = 1.0
TIMES_PATIENCE_S = 0.5
COUNTS_PATIENCE_S = 0.8
MAX_REPORT_BYTES = 64 << 20
_REPLY_HEAD = struct.Struct(">ii")  # length, correlation id


class Collector:
    def __init__(
        self, control_socket: str, worker_sockets: Sequence[str], router_sockets: Sequence[str]
    ) -> None:
        self._control_socket = control_socket
        self._workers = list(worker_sockets)
        self._routers = list(router_sockets)
        self._times = LagCache[Place](MAX_PLACES)
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
            asked = [
                group.create_task(_ask_report(path)) for path in (*self._workers, *self._routers)
            ]
        documents = [each.result() for each in asked]
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

    async def _ask_times(self, leader: int, places: list[Place]) -> None:
        body = encode_places(places)
        found = await ask_process(self._workers[leader], RECORD_TIMES, body, TIMES_PATIENCE_S)
        if found is not None:
            with contextlib.suppress(ValueError):
                self._times.add(places, decode_times(found))

    async def _ask_counts(self, leader: int, behind: list[Behind]) -> None:
        body = encode_behind(behind)
        found = await ask_process(self._workers[leader], RECORD_COUNTS, body, COUNTS_PATIENCE_S)
        if found is not None:
            with contextlib.suppress(ValueError):
                self._counts.add(behind, decode_counts(found))


async def ask_process(path: str, key: int, body: bytes, patience_s: float) -> bytes | None:
    """Send a private request to a process; None if it does not answer in time."""
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
            try:
                writer.write(private_frame(key, body))
                head = await reader.readexactly(_REPLY_HEAD.size)
                (size,) = LENGTH.unpack_from(head)
                if not 4 <= size <= MAX_REPORT_BYTES:
                    return None
                return await reader.readexactly(size - 4)
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError):
        return None


async def _ask_report(path: str) -> Document | None:
    found = await ask_process(path, METRICS, b"", PATIENCE_S)
    try:
        return None if found is None else decode(found)
    except ValueError:
        return None
