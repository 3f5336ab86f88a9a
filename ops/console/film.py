"""A group's film as a picture: lanes over time, coloured by owner. Pure.

Everything is in units of the picture; the page's style gives colours, by class, so that it follows
the light or dark theme and no inline style is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from moldau.ops.operations.group_history import Film, Pause, Span

WIDTH = 1000.0
LANE, GAP = 18, 4
MAX_LANES = 60
MAX_TICKS = 6
# Between ticks: 10 s to a day.
STEPS_MS = tuple(1000 * each for each in (10, 30, 60, 180, 600, 1800, 3600, 14_400, 86_400))
MAX_CAUSES = 3


class Bar(NamedTuple):
    x: float
    width: float
    hue: int
    title: str


class Lane(NamedTuple):
    y: int
    name: str
    bars: list[Bar]


class Stop(NamedTuple):
    """A pause, over all lanes."""

    x: float
    width: float
    title: str


class Tick(NamedTuple):
    x: float
    at_ms: int


class Picture(NamedTuple):
    height: int
    lanes: list[Lane]
    stops: list[Stop]
    ticks: list[Tick]
    owners: list[tuple[int, str]]  # hue and name, for the legend
    lag: str  # points of a line; empty when nothing is known
    most_lag: int
    hidden: int  # lanes that there is no room for


def draw(
    film: Film,
    hues: Mapping[str, int],
    *,
    by: str = "partition",
    lags: Sequence[tuple[int, int]] = (),
) -> Picture:
    """`hues`: of its members. `by`: a lane for each partition, or for each member. `lags`: times
    and lags."""
    length = max(film.until_ms - film.since_ms, 1)

    def x(at_ms: int) -> float:
        within = min(max(at_ms, film.since_ms), film.until_ms)
        return round((within - film.since_ms) / length * WIDTH, 2)

    grouped: dict[str, list[Span]] = {}  # by the key that sorts them
    for span in film.spans:
        place = span.place
        by_place = f"{place.topic} {place.partition:06}"
        key = by_place if by == "partition" else span.client + span.member
        grouped.setdefault(key, []).append(span)
    shown = [grouped[key] for key in sorted(grouped)][:MAX_LANES]
    lanes = [
        Lane(number * (LANE + GAP), _name(spans[0], by), _bars(spans, x, by, hues))
        for number, spans in enumerate(shown)
    ]
    stops = [
        Stop(x(pause.since_ms), max(x(pause.until_ms) - x(pause.since_ms), 1.5), _stopped(pause))
        for pause in film.pauses
    ]
    owners = sorted({(hues[span.member], f"{span.client} ({span.host})") for span in film.spans})
    most = max((lag for _, lag in lags), default=0)
    height = max(len(lanes), 1) * (LANE + GAP)
    points = " ".join(
        f"{x(at)},{round(height - 2 - lag / (most or 1) * (height - 4), 1)}" for at, lag in lags
    )
    ticks = [Tick(x(at), at) for at in tick_times(film.since_ms, film.until_ms)]
    hidden = max(len(grouped) - MAX_LANES, 0)
    return Picture(height, lanes, stops, ticks, owners, points if most else "", most, hidden)


def tick_times(since_ms: int, until_ms: int) -> list[int]:
    """Round times, as many as can be read."""
    length = until_ms - since_ms
    step = next((each for each in STEPS_MS if length // each <= MAX_TICKS), STEPS_MS[-1])
    # Not at the very edges, where a label would be cut off.
    first = -(-(since_ms + length // 25) // step) * step
    return list(range(first, until_ms - length // 25, step))


def causes(film: Film) -> list[tuple[Pause, str]]:
    """The last pauses, with members named as their clients."""
    clients = {span.member: span.client for span in film.spans}
    found = []
    for pause in reversed(film.pauses[-MAX_CAUSES:]):
        text = pause.cause
        for member, client in clients.items():
            text = text.replace(member, client)
        found.append((pause, text))
    return found


def members_of(film: Film) -> list[str]:
    """Members in the order in which they began to read."""
    return list(dict.fromkeys(span.member for span in film.spans))


def _name(span: Span, by: str) -> str:
    if by == "partition":
        return f"{span.place.topic}-{span.place.partition}"
    return f"{span.client} ({span.host})"


def _bars(
    spans: list[Span], x: Callable[[int], float], by: str, hues: Mapping[str, int]
) -> list[Bar]:
    if by == "partition":
        return [
            Bar(x(s.since_ms), max(x(s.until_ms) - x(s.since_ms), 0.5), hues[s.member],
                f"{s.client} ({s.host})")
            for s in spans
        ]  # fmt: skip
    times: dict[tuple[int, int], list[str]] = {}
    for span in spans:
        name = f"{span.place.topic}-{span.place.partition}"
        times.setdefault((span.since_ms, span.until_ms), []).append(name)
    hue = hues[spans[0].member]
    return [
        Bar(x(since), max(x(until) - x(since), 0.5), hue, ", ".join(sorted(names)))
        for (since, until), names in sorted(times.items())
    ]


def _stopped(pause: Pause) -> str:
    took = pause.until_ms - pause.since_ms
    text = f"{took} ms" if took < 1000 else f"{took / 1000:.1f} s"
    return f"no member read for {text}: {pause.cause}"
