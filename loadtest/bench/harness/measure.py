"""CPU and memory of processes, by their own clocks."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far.

    By its CPU clock (clock_getcpuclockid(3)): /proc counts in ticks of 10 ms, which is too coarse.
    """
    return time.clock_gettime((~pid << 3) | 2)


def kernel_seconds(pid: int) -> float:
    """System time a process has used so far, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / _TICK


def resident_bytes(pids: Iterable[int]) -> int:
    """Add up processes that still exist: a fork of the store that saved its data may have ended."""
    page = resource.getpagesize()
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
    return total


def megabytes(pids: list[int]) -> float | None:
    """None: not known, because the processes are not."""
    return resident_bytes(pids) / 1e6 if pids else None


def with_descendants(pids: Iterable[int]) -> list[int]:
    """These processes and all their descendants. Raises ProcessLookupError with the pid."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found: dict[int, None] = {}
    waiting = list(pids)
    for pid in waiting:
        if not Path(f"/proc/{pid}").exists():
            raise ProcessLookupError(pid)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            waiting += children.get(pid, [])
    return sorted(found)


class CpuMeter:
    """CPU seconds of several processes until `stop`, by role; `<role> kernel` is a part of it."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        self._pids = pids
        self._before = {pid: _used(pid) for many in pids.values() for pid in many}

    def stop(self) -> dict[str, float]:
        spent = {pid: _spent(before, _used(pid)) for pid, before in self._before.items()}
        used = {}
        for role, pids in self._pids.items():
            used[role] = sum(spent[pid][0] for pid in pids)
            used[f"{role} kernel"] = sum(spent[pid][1] for pid in pids)
        return used


def _used(pid: int) -> tuple[float, float] | None:
    """CPU and kernel seconds; None: it has ended, and what it used last is unknown."""
    try:
        return cpu_seconds(pid), kernel_seconds(pid)
    except OSError:
        return None


def _spent(
    before: tuple[float, float] | None, now: tuple[float, float] | None
) -> tuple[float, float]:
    if before is None or now is None:
        return 0.0, 0.0
    return now[0] - before[0], now[1] - before[1]
