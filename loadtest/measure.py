"""Measuring: CPU of processes, repeated runs, medians and ranges, tables."""

from __future__ import annotations

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
    page = resource.getpagesize()
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids)


class CpuMeter:
    """CPU seconds of several processes until `stop`, by role; `<role> kernel` is a part of it."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        self._pids = pids
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        used = {role: sum(map(cpu_seconds, pids)) for role, pids in self._pids.items()}
        for role, pids in self._pids.items():
            used[f"{role} kernel"] = sum(map(kernel_seconds, pids))
        return used

    def stop(self) -> dict[str, float]:
        return {role: now - self._before[role] for role, now in self._now().items()}


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
