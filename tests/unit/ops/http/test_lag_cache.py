"""Which timestamps are asked for, and for how long they are kept."""

from __future__ import annotations

from moldau.broker.metrics.document import CommittedRow, Document, GroupRow, PartitionRow
from moldau.broker.metrics.record_times import MAX_PLACES
from moldau.ops.http.lag import Lags
from moldau.ops.http.lag_cache import KnownTimes
from moldau.ops.http.snapshot import Snapshot


def lags(committed: dict[int, int], *, end: int = 10, start: int = 0) -> Lags:
    """Of a group in the partitions of a topic that two workers lead by turns."""
    rows = [PartitionRow("t", number, start, end, 1, number % 2) for number in committed]
    offsets = [CommittedRow("t", number, offset) for number, offset in committed.items()]
    groups = [GroupRow("a", "Stable", 1, offsets), GroupRow("b", "Stable", 1, offsets)]
    return Lags(Snapshot(None, [Document(partitions=rows, groups=groups)], []))


def test_the_leader_is_asked_once_for_what_is_waited_for() -> None:
    known = KnownTimes()
    assert known.wanted(lags({0: 4, 1: 5, 2: 10})) == {0: [("t", 0, 4)], 1: [("t", 1, 5)]}
    known.answered([("t", 0, 4)], [123])
    known.answered([("t", 1, 5)], [None])  # not looked up: ask again
    assert known.wanted(lags({0: 4, 1: 5})) == {1: [("t", 1, 5)]}
    known.answered([("t", 1, 5)], [-1])
    assert known.wanted(lags({0: 4, 1: 5})) == {}
    assert known.times == {("t", 0, 4): 123, ("t", 1, 5): -1}
    assert known.wanted(lags({0: 6, 1: 10})) == {0: [("t", 0, 6)]}
    assert known.times == {}


def test_what_is_before_the_log_start_is_not_waited_for() -> None:
    assert KnownTimes().wanted(lags({0: 4}, start=8)) == {0: [("t", 0, 8)]}
    assert KnownTimes().wanted(lags({0: 4}, start=10)) == {}


def test_a_question_is_bounded_and_all_have_their_turn() -> None:
    known = KnownTimes()
    many = lags({2 * number: 0 for number in range(2 * MAX_PLACES + 500)})
    asked = set()
    for _ in range(3):
        (places,) = known.wanted(many).values()
        assert len(places) == MAX_PLACES
        asked.update(places)
    assert len(asked) == 2 * MAX_PLACES + 500
