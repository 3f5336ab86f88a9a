"""The first of many events, and how many followed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security import repeat_counter
from moldau.broker.security.repeat_counter import RepeatCounter


def test_the_first_in_a_period_stands_out_and_the_others_are_counted() -> None:
    seen: RepeatCounter[str] = RepeatCounter(1000)
    assert seen.is_first("a", "x", 0)
    assert not seen.is_first("a", "x", 10)
    assert seen.is_first("b", "x", 500)
    assert not seen.is_first("a", "x", 990)
    assert seen.ended(999) == []
    assert seen.ended(1000) == [("a", 2)]
    assert seen.is_first("a", "x", 1001)
    assert seen.ended(5000) == []  # nothing was repeated
    assert seen.is_first("b", "x", 5001)


def test_one_cannot_hide_what_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat_counter, "MAX_OF_ONE", 3)
    seen: RepeatCounter[str] = RepeatCounter(1000)
    assert [seen.is_first(f"m{n}", "mallory", n) for n in range(5)] == [True] * 3 + [False] * 2
    assert seen.is_first("b", "bob", 6)
    assert seen.ended(1100) == [(None, 2)]
    assert seen.is_first("m4", "mallory", 1101)


events = st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.integers(0, 300))


@given(st.lists(events, max_size=60), st.integers(1, 4), st.integers(1, 3))
def test_every_event_is_the_first_or_counted(
    given_events: list[tuple[str, str, int]], most: int, of_one: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeat_counter, "MAX_KEYS", most)
        patch.setattr(repeat_counter, "MAX_OF_ONE", of_one)
        seen: RepeatCounter[tuple[str, str]] = RepeatCounter(1000)
        now = firsts = counted = 0
        for what, whose, later in given_events:
            now += later
            counted += sum(count for _, count in seen.ended(now))
            firsts += seen.is_first((what, whose), whose, now)
            assert len(seen._begun) <= most
        counted += sum(count for _, count in seen.ended(now + 1000))
        assert firsts + counted == len(given_events)
        assert not seen._begun
        assert not seen._of
