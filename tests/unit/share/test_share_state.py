"""What is stored of a share-partition."""

from __future__ import annotations

import random

import pytest

from moldau.broker.share import state, states
from moldau.broker.share.state import CorruptState
from moldau.broker.share.window import Window
from tests.unit.share.share_driver import ACCEPT, REJECT, RELEASE, Driver

Records = list[tuple[int, int]]


def records(window: Window) -> Records:
    return [(window.offset(at), window.of(at, at + 1)[0]) for at in range(window.base, window.top)]


def stored(window: Window) -> Window:
    again = state.decode(state.encode(window))
    assert again is not None
    return again


def test_nothing_is_known_yet() -> None:
    assert state.decode(b"") is None
    assert state.decode(state.encode(None)) is None
    window = Window(42)
    assert stored(window).start == stored(window).end == 42


def test_what_nobody_was_given_is_left_out() -> None:
    window = Window(7)
    window.extend(7, 3, states.ACQUIRED | 1)
    assert len(state.encode(window)) == 17
    again = stored(window)
    assert (again.start, again.end) == (7, 7)


def test_what_is_in_transit_is_stored_as_what_it_becomes() -> None:
    window = Window(0)
    for value in (
        states.ACQUIRED | 3,
        states.ACCEPTING | 3,
        states.ARCHIVING | 3,
        states.RELEASING | 3,
        states.AVAILABLE | 3,
    ):
        window.extend(window.end, 2, value)
    assert [value for _, value in records(stored(window))[::2]] == [
        states.AVAILABLE | 2,
        states.ACKNOWLEDGED,
        states.ARCHIVED,
        states.AVAILABLE | 3,
        states.AVAILABLE | 3,
    ]


@pytest.mark.parametrize("seed", range(200))
def test_any_window_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    window = Window(rng.choice((0, 5, 1 << 40)))
    kinds = (0, 1, 2, states.ACKNOWLEDGED, states.ARCHIVED, states.ACQUIRED | 1)
    for _ in range(rng.choice((0, 1, 5, 40))):
        skipped = rng.choice((0, 0, 0, 1, 200, 1 << 33))
        window.extend(window.end + skipped, rng.choice((1, 3, 200)), rng.choice(kinds))
    expected = [
        (offset, 0 if value == states.ACQUIRED | 1 else value) for offset, value in records(window)
    ]
    while expected and expected[0][1] in states.FINISHED:
        expected.pop(0)
    start = expected[0][0] if expected else window.end
    while expected and not expected[-1][1]:
        expected.pop()
    again = stored(window)
    assert records(again) == expected
    assert again.start == start
    assert again.end == (expected[-1][0] + 1 if expected else start)
    assert again.finished == sum(value in states.FINISHED for _, value in expected)
    assert state.encode(again) == state.encode(window)


def test_two_thousand_records_take_a_few_hundred_bytes() -> None:
    rng = random.Random(1)
    group = Driver((0, 1999))
    group.acquire(most=2000)
    types = bytes(rng.choices((1, 2, 3), weights=(90, 8, 2), k=1999))
    group.acknowledge((1, 1999, types))
    assert len(group.stored) < 720
    group.acknowledge((0, 0, ACCEPT))
    assert len(group.stored) < 720


def test_an_alternating_window_too() -> None:
    group = Driver((0, 1999))
    group.acquire(most=2000)
    group.acknowledge((0, 1999, (RELEASE + ACCEPT + RELEASE + REJECT) * 500))
    assert len(group.stored) < 120


@pytest.mark.parametrize("seed", range(300))
def test_damaged_states_are_noticed_or_read_as_a_window(seed: int) -> None:
    rng = random.Random(seed)
    group = Driver((0, 99), (200, 299))
    group.acquire(most=200)
    group.acknowledge((3, 50, RELEASE), (60, 99, REJECT), (210, 250, ACCEPT))
    damaged = bytearray(group.stored)
    for _ in range(rng.choice((1, 1, 3))):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    if rng.random() < 0.2:
        del damaged[rng.randrange(len(damaged)) :]
    try:
        window = state.decode(bytes(damaged))
    except CorruptState:
        return
    assert window is None or window.start <= window.end


@pytest.mark.parametrize(
    "bad",
    [b"\1", b"\7" + bytes(16), b"\1" + bytes(7) + b"\5" + b"\xff" * 8, bytes(40)],
)
def test_what_is_no_state_is_refused(bad: bytes) -> None:
    with pytest.raises(CorruptState):
        state.decode(bad)
