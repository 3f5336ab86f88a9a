"""What the processes of the broker report: asked over their sockets, all at once, within a second.

A process that does not answer in time has no report; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from moldau.broker.metrics.document import METRICS, Document, decode
from moldau.broker.metrics.record_counts import Behind
from moldau.broker.metrics.record_times import Place
from moldau.broker.wire.frame import LENGTH, private_frame

PATIENCE_S = 1.0
MAX_REPORT_BYTES = 64 << 20
_REPLY_HEAD = struct.Struct(">ii")  # length, correlation id


class Process(msgspec.Struct, frozen=True):
    """A process of the broker as the supervisor knows it."""

    role: str
    index: int
    pid: int | None
    port: int | None
    uptime_s: float
    restarts: int
    state: str


class Status(msgspec.Struct, frozen=True):
    processes: list[Process]
    store: dict[str, Any]


class Snapshot(msgspec.Struct, frozen=True):
    """None in place of what did not come in time."""

    status: Status | None
    workers: list[Document | None]
    routers: list[Document | None]
    # When records were made that groups have not committed yet, and what the clock says.
    times: dict[Place, int] = {}
    clock_ms: int = 0
    # How many records groups are behind where offsets do not tell; UNKNOWN: too many to count.
    counts: dict[Behind, int] = {}


class Reporters:
    """Where to ask."""

    def __init__(
        self, control_socket: str, worker_sockets: Sequence[str], router_sockets: Sequence[str]
    ) -> None:
        self._control_socket = control_socket
        self.workers = list(worker_sockets)
        self._routers = list(router_sockets)

    async def ask_all(self, patience_s: float = PATIENCE_S) -> Snapshot:
        async with asyncio.TaskGroup() as group:
            status = group.create_task(self.status(patience_s))
            asked = [
                group.create_task(_ask_report(path, patience_s))
                for path in (*self.workers, *self._routers)
            ]
        documents = [each.result() for each in asked]
        count = len(self.workers)
        return Snapshot(status.result(), documents[:count], documents[count:])

    async def status(self, patience_s: float = PATIENCE_S) -> Status | None:
        """What the supervisor knows; None while it does not answer."""
        try:
            async with asyncio.timeout(patience_s):
                reader, writer = await asyncio.open_unix_connection(self._control_socket)
                try:
                    writer.write(b"status\n")
                    return msgspec.json.decode(await reader.read(), type=Status)
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError):
            return None


async def ask_process(path: str, key: int, body: bytes, patience_s: float) -> bytes | None:
    """The answer of a process to a private request; None: it did not come in time."""
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


async def _ask_report(path: str, patience_s: float) -> Document | None:
    found = await ask_process(path, METRICS, b"", patience_s)
    try:
        return None if found is None else decode(found)
    except ValueError:
        return None


# --- /proc ---


class Usage(msgspec.Struct, frozen=True):
    """What a process has used, as far as the kernel says."""

    cpu_seconds: float
    resident_bytes: int
    open_fds: int


def usages(status: Status | None) -> dict[tuple[str, int], Usage]:
    """By role and index, of the processes that run on this machine."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
    found = {}
    for each in status.processes if status is not None else ():
        usage = usage_of(each.pid, ticks, page) if each.pid is not None else None
        if usage is not None:
            found[each.role, each.index] = usage
    return found


def usage_of(pid: int, ticks: int, page: int) -> Usage | None:
    """None: it is gone, or this is not Linux. `ticks` and `page`: sysconf's."""
    directory = Path("/proc") / str(pid)
    try:
        # The name in brackets may hold anything; what follows it is numbers.
        fields = (directory / "stat").read_bytes().rpartition(b")")[2].split()
        resident = int((directory / "statm").read_bytes().split()[1]) * page
        open_fds = sum(1 for _ in (directory / "fd").iterdir())
    except (OSError, ValueError, IndexError):
        return None
    return Usage((int(fields[11]) + int(fields[12])) / ticks, resident, open_fds)
