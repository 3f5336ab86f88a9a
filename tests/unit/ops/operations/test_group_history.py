"""Events of a group become a film: who read what, when that stopped, and why."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.coordinator.groups.events import as_ranges
from moldau.ops.client import TopicPartition
from moldau.ops.operations.group_history import (
    Event,
    Offsets,
    Pause,
    Span,
    explain,
    film,
    numbers_of,
    offsets_at,
    offsets_before_reset,
)

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def event(at_ms: int, name: str, **facts: Any) -> Event:
    return Event(at_ms, name, {"event": name, "time_ms": at_ms, **facts})


def owner(member: str, ranges: str) -> dict[str, Any]:
    return {"member": member, "client": f"c-{member}", "host": "/h", "topics": {"orders": ranges}}


LIFE = [
    event(100, "member_joined", member="a", client="c-a", host="/h"),
    event(100, "rebalance_started", reason="member a joined", generation=0),
    event(150, "rebalance_completed", generation=1),
    event(150, "assigned", generation=1, owners=[owner("a", "0-1")]),
    event(300, "member_joined", member="b", client="c-b", host="/h"),
    event(300, "rebalance_started", reason="member b joined", generation=1),
    event(320, "rebalance_started", reason="member a left", generation=1),
    event(400, "rebalance_completed", generation=2),
    event(400, "assigned", generation=2, owners=[owner("a", "0"), owner("b", "1")]),
    event(450, "commits", offsets={"orders": [[0, 5], [1, 6]]}),
    event(600, "member_expired", member="b", client="c-b", host="/h"),
    event(600, "rebalance_started", reason="member b expired", generation=2),
]


def test_who_owned_what_and_when_nobody_did() -> None:
    shown = film(LIFE, 0, 1000)
    assert shown.spans == [
        Span(ORDERS_0, "a", "c-a", "h", 150, 300),
        Span(ORDERS_0, "a", "c-a", "h", 400, 600),
        Span(ORDERS_1, "a", "c-a", "h", 150, 300),
        Span(ORDERS_1, "b", "c-b", "h", 400, 600),
    ]
    assert shown.pauses == [
        Pause(100, 150, "member a joined", 0),
        Pause(300, 400, "member b joined", 1),  # it began again, and is one pause
        Pause(600, 1000, "member b expired", 2),  # under way
    ]
    assert [marker.text for marker in shown.markers] == [
        "c-a (h) joined", "c-b (h) joined", "c-b (h) expired",
    ]  # fmt: skip
    assert (shown.places, shown.members) == ([ORDERS_0, ORDERS_1], ["a", "b"])


def test_what_was_assigned_before_the_film_is_in_it_from_its_beginning() -> None:
    shown = film([LIFE[3], LIFE[5]], 200, 1000)
    assert [(span.since_ms, span.until_ms) for span in shown.spans] == [(200, 300), (200, 300)]


def test_a_group_that_is_gone_owns_nothing() -> None:
    shown = film([*LIFE[:4], event(200, "group_deleted")], 0, 1000)
    assert {span.until_ms for span in shown.spans} == {200}
    assert shown.pauses == [Pause(100, 150, "member a joined", 0)]


def test_causes_and_members_are_counted() -> None:
    found = explain(film(LIFE, 0, 1000))
    assert (found.rebalances, found.lost_ms) == (3, 550)
    assert found.causes == [("a member's session expired", 1, 400), ("a member joined", 2, 150)]
    assert found.members == [("c-b (h)", 1, 1), ("c-a (h)", 1, 0)]


def test_offsets_of_a_time_and_before_a_reset() -> None:
    reset = event(700, "commits", before=True, offsets={"orders": [[0, 9]]})
    assert offsets_at(LIFE, 449) is None
    assert offsets_at(LIFE, 500) == Offsets(450, {ORDERS_0: 5, ORDERS_1: 6})
    assert offsets_before_reset(LIFE) is None
    assert offsets_before_reset([*LIFE, reset]) == Offsets(700, {ORDERS_0: 9}, True)


@given(st.sets(st.integers(0, 300), max_size=40))
def test_ranges_are_read_as_they_are_written(partitions: set[int]) -> None:
    assert list(numbers_of(as_ranges(list(partitions)))) == sorted(partitions)
