"""Small charts as inline SVG, without scripts; the page's style sheet has the colours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from moldau.ops.command_line import size_text

WIDTH, HEIGHT = 760, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 10, 24


class Point(NamedTuple):
    at_ms: float
    value: float
    label: str


def number(value: float) -> str:
    """A number as axes show it: 1.2 k, 3.4 M."""
    for unit, limit in (("", 1e3), (" k", 1e6), (" M", 1e9), (" G", 1e12)):
        if abs(value) < limit:
            scaled = value / (limit / 1e3)
            return f"{scaled:.0f}{unit}" if scaled == int(scaled) else f"{scaled:.1f}{unit}"
    return f"{value:.2g}"


def moment(at_ms: float, span_ms: float) -> str:
    form = "%H:%M:%S" if span_ms < 3_600_000 else "%d %b %H:%M" if span_ms < 7e8 else "%d %b %Y"
    return time.strftime(form, time.gmtime(at_ms / 1000))


def _frame(body: list[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def _nice_top(value: float) -> float:
    """The next round number, for the top of an axis."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _axes(top: float, first_ms: float, last_ms: float, unit: str) -> list[str]:
    parts = []
    inner = HEIGHT - _TOP - _BOTTOM
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner * (1 - share)
        text = size_text(int(top * share)) if unit == "bytes" else number(top * share)
        suffix = "" if unit == "bytes" else unit
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{text}{suffix}</text>"
        )
    span = last_ms - first_ms
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * share
        parts.append(
            f'<text class="axis" x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
            f"{moment(first_ms + span * share, span)}</text>"
        )
    return parts


def bars_over_time(points: Sequence[Point], width_ms: float, unit: str, label: str) -> str:
    """A bar for each bucket of time that has a value."""
    first, last = points[0].at_ms, points[-1].at_ms + width_ms
    top = _nice_top(max(point.value for point in points))
    inner_width, inner = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    body = _axes(top, first, last, unit)
    scale = inner_width / (last - first)
    for point in points:
        x = _LEFT + (point.at_ms - first) * scale
        height = inner * point.value / top
        wide = max(width_ms * scale - 1, 1.0)
        body.append(
            f'<rect class="bar" x="{x:.1f}" y="{_TOP + inner - height:.1f}" width="{wide:.1f}" '
            f'height="{height:.1f}"><title>{escape(point.label)}</title></rect>'
        )
    return _frame(body, label)


def line_over_time(points: Sequence[Point], unit: str, label: str, *, stems: bool = False) -> str:
    """A line, or with `stems` a pin for each point, for single events."""
    first, last = points[0].at_ms, points[-1].at_ms
    if first == last:
        first, last = first - 30_000, last + 30_000
    top = _nice_top(max(point.value for point in points))
    inner_width, inner = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    body = _axes(top, first, last, unit)
    partitions = [
        (
            _LEFT + inner_width * (point.at_ms - first) / (last - first),
            _TOP + inner * (1 - point.value / top),
        )
        for point in points
    ]
    if not stems:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in partitions)
        base = _TOP + inner
        area = f"{partitions[0][0]:.1f},{base} {path} {partitions[-1][0]:.1f},{base}"
        body.append(f'<polygon class="area" points="{area}"/>')
        body.append(f'<polyline class="line" points="{path}"/>')
    for (x, y), point in zip(partitions, points, strict=True):
        if stems:
            body.append(
                f'<line class="stem" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + inner}" y2="{y:.1f}"/>'
            )
        body.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{escape(point.label)}</title></circle>"
        )
    return _frame(body, label)


def columns(values: Sequence[tuple[str, float, str]], label: str) -> str:
    """Columns side by side, of a name, a value and a label."""
    top = _nice_top(max(value for _, value, _ in values))
    inner_width, inner = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    step = min(inner_width / len(values), 90)
    body = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner * (1 - share)
        body.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{number(top * share)}</text>"
        )
    for at, (name, value, caption) in enumerate(values):
        x = _LEFT + at * step
        height = inner * value / top
        body.append(
            f'<rect class="bar" x="{x + 2:.1f}" y="{_TOP + inner - height:.1f}" '
            f'width="{step - 4:.1f}" height="{height:.1f}"><title>{escape(caption)}</title></rect>'
            f'<text class="axis" x="{x + step / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return _frame(body, label)


def shares(values: Sequence[tuple[str, float, str]]) -> str:
    """Bars below each other, of a name, a value and a label; in HTML, so that long names wrap."""
    top = max((value for _, value, _ in values), default=0) or 1
    return (
        '<div class="shares">'
        + "".join(
            f'<div class="name" title="{escape(name)}">{escape(name)}</div>'
            '<div class="track">'
            f'<div class="fill" style="width:{100 * value / top:.1f}%"></div></div>'
            f'<div class="label">{escape(label)}</div>'
            for name, value, label in values
        )
        + "</div>"
    )
