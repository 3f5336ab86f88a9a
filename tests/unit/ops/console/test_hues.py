"""Colours of members: apart from each other, and the same in every view."""

from __future__ import annotations

from moldau.ops.console import hues as module
from moldau.ops.console.hues import HUES, Hues


def test_members_that_are_shown_together_have_different_colours() -> None:
    members = [f"member-{number}" for number in range(HUES)]
    assert set(Hues().of("g", members).values()) == set(range(HUES))


def test_with_more_members_than_colours_each_has_equally_many() -> None:
    found = Hues().of("g", [f"member-{number}" for number in range(3 * HUES)])
    assert all(list(found.values()).count(hue) == 3 for hue in range(HUES))


def test_a_member_keeps_its_colour_whoever_else_is_shown() -> None:
    hues = Hues()
    first = hues.of("g", ["a", "b", "c"])
    assert hues.of("g", ["x", "c", "y", "a"]).items() >= {"a": first["a"], "c": first["c"]}.items()
    assert hues.of("g", ["b"]) == {"b": first["b"]}


def test_what_is_remembered_is_bounded() -> None:
    hues = Hues()
    assert len(hues.of("g", map(str, range(2 * module.MAX_MEMBERS)))) == 2 * module.MAX_MEMBERS
    for number in range(module.MAX_GROUPS + 5):
        hues.of(str(number), ["a"])
    assert len(hues._by_group) == module.MAX_GROUPS
    assert all(len(each) <= module.MAX_MEMBERS for each in hues._by_group.values())
