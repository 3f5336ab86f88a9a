"""How `moldau top` looks: an overview as tables, on a screen or printed."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moldau.ops.command_line import (
    Cell,
    duration_text,
    print_facts,
    print_table,
    printable,
    shown,
    size_text,
)

LONGEST = 20  # rows of topics and groups when they are printed
_FEWEST = 3  # on a screen, however low it is
_AROUND = 12  # lines of a screen that are neither processes, topics nor groups


class Part(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    left: int  # columns of text; all others are figures


def facts(overview: dict[str, Any]) -> dict[str, Cell]:
    store = overview["store"]
    memory = _size(store["memory_bytes"])
    if memory is not None and store["memory_limit_bytes"]:
        share = 100 * store["memory_bytes"] / store["memory_limit_bytes"]
        memory += f" of {size_text(store['memory_limit_bytes'])} ({share:.0f} %)"
    return {
        "state": "; ".join(overview["problems"]) or "ready",
        "requests": f"{_number(overview['requests_per_s'])}/s",
        "records in": f"{_number(overview['records_in_per_s'])}/s",
        "bytes in": f"{_size(overview['bytes_in_per_s'])}/s",
        "bytes out": f"{_size(overview['bytes_out_per_s'])}/s",
        "store memory": memory,
    }


def parts(overview: dict[str, Any], most: int) -> list[Part]:
    """Processes, topics and groups; of the latter two so many rows together as `most`."""
    processes = [
        (
            each["role"] if each["role"] not in ("worker", "router")
            else f"{each['role']} {each['index']}",
            each["state"],
            each["pid"],
            duration_text(each["uptime_s"]),
            each["restarts"],
            None if each["cpu_percent"] is None else f"{each['cpu_percent']:.0f} %",
            _size(each["memory_bytes"]),
            each["connections"],
            _number(each["requests_per_s"]),
            _milliseconds(each["loop_lag_mean_s"]),
            _milliseconds(each["loop_lag_max_s"]),
        )
        for each in overview["processes"]
    ]  # fmt: skip
    room = most - min(len(overview["groups"]), most // 2)
    topics = [
        (
            each["topic"],
            each["partitions"],
            _size(each["size_bytes"]),
            _number(each["records_in_per_s"]),
            _size(each["bytes_in_per_s"]),
            _size(each["bytes_out_per_s"]),
        )
        for each in overview["topics"][:room]
    ]
    groups = [
        (each["group"], each["state"], each["members"], each["lag"])
        for each in overview["groups"][: most - len(topics)]
    ]
    return [
        Part(("process", "state", "pid", "uptime", "restarts", "CPU", "memory", "clients",
              "requests/s", "loop lag", "at most"), list(processes), 2),
        Part((f"topic ({len(overview['topics'])})", "partitions", "size", "records in/s",
              "bytes in/s", "bytes out/s"), list(topics), 1),
        Part((f"group ({len(overview['groups'])})", "state", "members", "lag"), list(groups), 2),
    ]  # fmt: skip


def print_overview(overview: dict[str, Any]) -> None:
    print_facts(facts(overview))
    for part in parts(overview, 2 * LONGEST):
        print()
        print_table(part.columns, part.rows)


def screen(overview: dict[str, Any], title: str, height: int) -> RenderableType:
    """How many rows fit on a terminal with so many lines."""
    line = Text(f"moldau top, {printable(title)}", style="bold", no_wrap=True)
    figures = Text(no_wrap=True)
    for name, value in facts(overview).items():
        style = "red" if name == "state" and overview["problems"] else ""
        figures.append(f"{name} ", "dim").append(f"{shown(value)}   ", style)
    room = max(height - _AROUND - len(overview["processes"]), 2 * _FEWEST)
    drawn: list[RenderableType] = [line, figures]
    for part in parts(overview, room):
        drawn += ["", _table(part)]
    return Group(*drawn)


def _table(part: Part) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for index, name in enumerate(part.columns):
        right = index >= part.left
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in part.rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: float | None) -> str | None:
    return None if value is None else size_text(int(value))


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.1f} ms"
