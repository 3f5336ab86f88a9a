"""A group's film as a picture."""

from __future__ import annotations

from itertools import pairwise

from moldau.ops.client import TopicPartition
from moldau.ops.console.film import (
    GAP,
    LANE,
    MAX_LANES,
    MAX_TICKS,
    WIDTH,
    causes,
    draw,
    members_of,
    tick_times,
)
from moldau.ops.operations.group_history import Film, Marker, Pause, Span

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 10)
FILM = Film(
    0,
    1000,
    [
        Span(P0, "a", "alpha", "h", 0, 500),
        Span(P0, "b", "beta", "h", 600, 1000),
        Span(P1, "a", "alpha", "h", 0, 500),
    ],
    [Pause(500, 600, "beta joined", 1)],
    [Marker(500, "beta (h) joined", "b")],
    [],
)

HUES = {"a": 3, "b": 7}


def test_lanes_by_partition_have_a_bar_for_each_owner() -> None:
    picture = draw(FILM, HUES)
    assert [lane.name for lane in picture.lanes] == ["t-0", "t-10"]
    first, second = picture.lanes[0].bars
    assert (first.x, first.width, first.hue) == (0, WIDTH / 2, HUES["a"])
    assert (second.x, second.width, second.title) == (600, 400, "beta (h)")
    (stop,) = picture.stops
    assert (stop.x, stop.width) == (500, 100)
    assert stop.title == "no member read for 100 ms: beta joined"
    assert picture.height == 2 * (LANE + GAP)
    assert {name for _, name in picture.owners} == {"alpha (h)", "beta (h)"}


def test_lanes_by_member_say_what_it_had() -> None:
    alpha, beta = draw(FILM, HUES, by="member").lanes
    assert [bar.title for bar in alpha.bars] == ["t-0, t-10"]
    assert [bar.title for bar in beta.bars] == ["t-0"]


def test_lag_is_a_line_up_to_the_most_there_was() -> None:
    picture = draw(FILM, HUES, lags=[(0, 0), (1000, 50)])
    assert picture.most_lag == 50
    assert picture.lag == f"0.0,{picture.height - 2.0} 1000.0,2.0"
    assert draw(FILM, HUES, lags=[(0, 0)]).lag == ""


def test_lanes_are_bounded() -> None:
    spans = [Span(TopicPartition("t", n), "a", "c", "h", 0, 9) for n in range(MAX_LANES + 5)]
    picture = draw(FILM._replace(spans=spans), HUES)
    assert (len(picture.lanes), picture.hidden) == (MAX_LANES, 5)
    assert picture.lanes[11].name == "t-11"


def test_ticks_are_at_round_times() -> None:
    since = 1_794_963_403_123
    for minutes in (5, 15, 60, 360, 1440, 7 * 1440):
        until = since + minutes * 60_000
        times = tick_times(since, until)
        assert 3 <= len(times) <= MAX_TICKS + 1
        steps = {after - before for before, after in pairwise(times)}
        (step,) = steps
        assert all(at % step == 0 for at in times)
        assert since < times[0]
        assert times[-1] < until


def test_causes_name_clients_and_not_their_member_ids() -> None:
    span = Span(P0, "c-1-4711", "c-1", "10.0.0.1", 0, 100)
    pauses = [Pause(at, at + 5, f"member c-1-4711 joined {at}", 1) for at in range(0, 50, 10)]
    texts = [text for _, text in causes(FILM._replace(spans=[span], pauses=pauses))]
    assert texts == ["member c-1 joined 40", "member c-1 joined 30", "member c-1 joined 20"]


def test_members_come_in_the_order_in_which_they_began_to_read() -> None:
    assert members_of(FILM) == ["a", "b"]
