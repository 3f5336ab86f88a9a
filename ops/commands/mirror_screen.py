"""How far a mirror is, for people: a live view, and lines for the end of a run."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moldau.ops.command_line import duration_text, printable, size_text
from moldau.ops.mirror.report import Report, TopicReport
from moldau.ops.mirror.topics import REFUSED

LINES_BESIDE = 8  # of the terminal, beside topics


def screen(report: Report, elapsed: float, height: int) -> RenderableType:
    table = Table()
    for name in ("topic", "state"):
        table.add_column(name, overflow="fold")
    for name in ("partitions", "records", "bytes", "lag"):
        table.add_column(name, justify="right")
    shown = sorted(report.topics, key=_order)[: max(height - LINES_BESIDE, 3)]
    for one in shown:
        state = Text(one.state, style="red" if one.state == REFUSED else "")
        table.add_row(
            Text(printable(one.topic)),
            state,
            str(one.partitions),
            f"{one.records:,}",
            size_text(one.bytes),
            _lag_text(one.lag),
        )
    parts: list[RenderableType] = [Text(_summary(report, elapsed)), table]
    if len(shown) < len(report.topics):
        parts.append(Text(f"and {len(report.topics) - len(shown)} more topics"))
    if report.trouble:
        parts.append(Text(printable(report.trouble), style="yellow"))
    return Group(*parts)


def _order(one: TopicReport) -> tuple[bool, int, str]:
    """Refused ones first, then by lag."""
    return one.state != REFUSED, -(one.lag or 0), one.topic


def _summary(report: Report, elapsed: float) -> str:
    rate = report.records / elapsed if elapsed > 0 else 0.0
    waiting = sum(one.waiting for one in report.groups)
    return (
        f"{report.records:,} records, {size_text(report.bytes)} in {duration_text(elapsed)} "
        f"({rate:,.0f}/s); lag {_lag_text(report.lag)}; {len(report.groups)} groups"
        + (f", {waiting} offsets wait for their records" if waiting else "")
    )


def _lag_text(lag: int | None) -> str:
    return "-" if lag is None else f"{lag:,}"


def lines_of(report: Report) -> Iterator[str]:
    """A summary, what was not copied, and why."""
    count = sum(one.state != REFUSED for one in report.topics)
    lag = "not known" if report.lag is None else f"{report.lag:,}"
    yield (
        f"{count} topics, {report.records:,} records, {size_text(report.bytes)} copied; lag {lag}"
    )
    for one in report.topics:
        for left_out in one.left_out:
            yield f"topic {printable(one.topic)}: not copied: {printable(left_out)}"
    for group in report.groups:
        if group.why:
            yield f"group {printable(group.group)}: {printable(group.why)}"
        elif group.active_here:
            yield f"group {printable(group.group)} has members here, and keeps its own offsets"
        elif group.waiting:
            yield (
                f"group {printable(group.group)}: {group.waiting} offsets are beyond what is "
                "mirrored, and not copied"
            )
    if report.acls:
        yield f"{report.acls} ACLs made"
    if report.acls_why:
        yield f"ACLs are not copied: {printable(report.acls_why)}"
