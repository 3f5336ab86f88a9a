"""Figures over several turns: medians, ranges, and tables of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

FILE_WIDTH = 240

Figures = dict[str, float | None]  # of one turn


class Figure:
    """A number that was measured several times: its median and range are reported."""

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
    """A figure as it is reported; None: not known, because the broker's processes are not."""
    known = [value for value in values if value is not None]
    return Figure(known).to_json() if known else None


def summaries(turns: Sequence[Figures]) -> dict[str, Any]:
    return {name: summary([figures[name] for figures in turns]) for name in turns[0]}


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
        console.width = FILE_WIDTH  # do not wrap columns
    console.print(made)
