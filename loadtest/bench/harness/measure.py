"""Measuring: CPU of processes, repeated runs, medians and ranges, tables."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDE = 240
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far.

    By its CPU clock (clock_getcpuclockid(3)): /proc counts in ticks of 10 ms, longer than what is
    to be measured here at times.
    """
    return time.clock_gettime((~pid << 3) | 2)


def kernel_seconds(pid: int) -> float:
    """System time a process has used so far, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / _TICK


def resident_bytes(pids: Iterable[int]) -> int:
    """Of those that are still there: a store's fork that saved its data, say, is not."""
    page = resource.getpagesize()
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
    return total


def with_descendants(pids: Iterable[int]) -> list[int]:
    """These processes and all that descend from them. Raises ProcessLookupError with the pid."""
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
    """CPU and kernel seconds; None: it has ended. Those of its last moments nobody can tell."""
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


class Figure:
    """A number measured several times: what is reported is its median and its range."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{short(self.median)} ({short(low)}-{short(high)})"

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values)}


def summary(values: Sequence[float | None]) -> dict[str, float] | None:
    """A figure as it is reported; None: not known, because the processes are not ours to see."""
    known = [value for value in values if value is not None]
    return Figure(known).to_json() if known else None


def short(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size_name(size: int) -> str:
    if size >= 1 << 20:
        return f"{size >> 20} MB"
    return f"{size >> 10} KB" if size >= 1024 else f"{size} B"


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    made = Table(title=title, title_justify="left")
    for name in rows[0]:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*(str(value) for value in row.values()))
    return made


def show(made: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = WIDE  # a file has no edge to fold columns at
    console.print(made)
