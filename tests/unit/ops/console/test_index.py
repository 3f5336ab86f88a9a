"""What processes reported, as pages show it: names in order, who reads what, pages of a list."""

from __future__ import annotations

import pytest

from moldau.broker.metrics.document import CommittedRow, Document, GroupRow, PartitionRow
from moldau.broker.private.table import UNKNOWN
from moldau.ops.console.history import MAX_SERIES, POINTS, History, Series
from moldau.ops.console.index import Index, page_of
from moldau.ops.http.snapshot import Snapshot


def row(
    topic: str, partition: int = 0, end: int = 10, *, has_consecutive_offsets: bool = True
) -> PartitionRow:
    return PartitionRow(topic, partition, 0, end, 100, 0, end, end, has_consecutive_offsets)


def group(name: str, committed: dict[str, int], members: int = 0) -> GroupRow:
    rows = [CommittedRow(topic, 0, offset) for topic, offset in committed.items()]
    return GroupRow(name, "Stable", members, rows)


def test_topics_know_their_groups() -> None:
    first = Document(
        partitions=[row("b"), row("a"), row("a", 1)], groups=[group("g", {"a": 4, "b": 10}, 2)]
    )
    second = Document(groups=[group("f", {"a": 0, "gone": 1}, 1)])
    index = Index(Snapshot(None, [first, None, second], []))
    assert index.topic_names == ["a", "b"]
    assert index.group_names == ["f", "g"]
    assert index.readers == {"a": ["f", "g"], "b": ["g"], "gone": ["f"]}
    a = index.topic("a")
    assert (a.partitions, a.size, a.records) == (2, 200, 20)
    assert a.groups == [("f", 10), ("g", 6)]
    g = index.group("g")
    assert (g.lag, g.topics, g.owner, g.members) == (6, ["a", "b"], 0, 2)
    f = index.group("f")
    assert (f.lag, f.owner) == (None, 2), "of a topic that is gone nothing is known"
    assert [each.lag for each in index.groups_of("a", ["g"])] == [6]
    assert index.ages("unknown") == {}
    totals = {"topics": 2, "partitions": 3, "bytes": 300, "groups": 2, "members": 3}
    assert index.totals == totals
    assert sum(slot.members for slot in index.slots) == 3


def test_lag_is_what_was_counted_where_offsets_do_not_tell() -> None:
    native = row("n", end=5_000_000, has_consecutive_offsets=False)
    document = Document(partitions=[native], groups=[group("g", {"n": 1_000_000})])

    def lag(counts: dict[tuple[str, int, str, int], int]) -> int | None:
        return Index(Snapshot(None, [document], [], counts=counts)).group("g").lag

    place = ("n", 0, "g", 1_000_000)
    assert lag({}) is None
    assert lag({place: UNKNOWN}) is None
    assert lag({place: 17}) == 17
    assert lag({("n", 0, "g", 999_999): 17}) is None, "of an offset that it had before"


@pytest.mark.parametrize(
    ("q", "number", "expected"),
    [
        ("", "", (1, 3, 250, 0)),
        ("", "3", (3, 3, 250, 200)),
        ("", "99", (3, 3, 250, 200)),
        ("", "0", (1, 3, 250, 0)),
        ("", "-1", (1, 3, 250, 0)),
        ("", "²", (1, 3, 250, 0)),
        ("N-00", "1", (1, 1, 10, 0)),
        ("nothing", "2", (1, 1, 0, None)),
    ],
)
def test_pages_of_a_list(q: str, number: str, expected: tuple[int, int, int, int | None]) -> None:
    names = [f"n-{each:03}" for each in range(250)]
    page = page_of(names, q, number)
    first = None if not page.names else int(page.names[0][2:])
    assert (page.number, page.pages, page.total, first) == expected
    assert len(page.names) <= 100


def test_a_series_keeps_changes_only() -> None:
    series = Series()
    for number in range(10_000):
        series.add(number, number // 5_000)
    assert list(series.values) == [0, 1]
    assert series.between(4_998, 5_002) == [(4_998, 0), (4_999, 0), (5_000, 1), (5_001, 1)]
    for number in range(10_000, 12_000):
        series.add(number, number)
    assert len(series.values) == POINTS
    assert series.between(11_998, 99_999) == [(11_998, 11_998), (11_999, 11_999)]


def test_the_history_is_bounded_and_forgets_what_is_gone() -> None:
    history = History()
    many = [row(f"t{number}") for number in range(MAX_SERIES + 10)]
    history.add(0.0, 0.0, Snapshot(None, [Document(partitions=many)], []))
    for number in range(1, POINTS + 70):
        snapshot = Snapshot(None, [Document(partitions=[row("t0", end=number * 10)])], [])
        history.add(number * 5.0, number * 5.0, snapshot)
    assert len(history.points) == POINTS
    assert history.record_rates("t1") == []
    assert history.record_rates("t0") == [2.0] * (POINTS - 1)
    assert history.record_rates("t0", 60) == [2.0] * 60
    assert history.record_rates(among={"t0", "other"}) == [2.0] * (POINTS - 1)
