"""The reports of all processes of the broker at one moment, with their CPU and memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from moldau.broker.metrics.document import Document
from moldau.broker.private.table import Behind, RecordOffset


class Process(msgspec.Struct, frozen=True):
    """A process of the broker as the supervisor knows it."""

    role: str
    index: int
    pid: int | None
    port: int | None
    uptime_s: float
    restarts: int
    state: str


class LeaseHolder(msgspec.Struct, frozen=True):
    """The broker that serves the store."""

    host: str
    pid: int
    port: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, port {self.port}"


class LeaseFacts(msgspec.Struct, frozen=True):
    """Who serves an external store, as this broker's supervisor knows."""

    role: str  # holder, standby
    since: float  # seconds since 1970
    left_s: float | None = None  # how long the holder may serve without a renewal
    holder: LeaseHolder | None = None


class Status(msgspec.Struct, frozen=True):
    processes: list[Process]
    store: dict[str, Any]
    lease: LeaseFacts | None = None  # None: the embedded store

    @property
    def is_standby(self) -> bool:
        return bool(self.processes) and self.processes[0].state == "standby"


class Snapshot(msgspec.Struct, frozen=True):
    """None stands for a report that did not come in time."""

    status: Status | None
    workers: list[Document | None]
    routers: list[Document | None]
    # When records were made that groups have not committed yet, and what the clock says.
    times: dict[RecordOffset, int] = {}
    clock_ms: int = 0
    # How many records groups are behind where offsets do not tell; UNKNOWN: too many to count.
    counts: dict[Behind, int] = {}


# --- /proc ---


class Usage(msgspec.Struct, frozen=True):
    """CPU, memory and descriptors of a process, from the kernel."""

    cpu_seconds: float
    resident_bytes: int
    open_fds: int


def usages(status: Status | None) -> dict[tuple[str, int], Usage]:
    """The usage of processes that run on this machine, by role and index."""
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
