"""Which timestamps and counts leaders are asked for, and how long an answer is kept."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.metrics.document import CommittedRow, Document, GroupRow, PartitionRow
from moldau.broker.private.table import MAX_BEHIND, MAX_RECORD_TIMES, UNKNOWN, Behind, RecordOffset
from moldau.ops.http.families import families
from moldau.ops.http.lag import LagCache, Lags
from moldau.ops.http.snapshot import Snapshot

# --- timestamps ---


def waiting(
    committed: dict[int, int], *, end: int = 10, start: int = 0
) -> Iterator[tuple[int, RecordOffset, None]]:
    """Records that two groups wait for, in partitions that two workers lead by turns."""
    rows = [PartitionRow("t", number, start, end, 1, number % 2) for number in committed]
    offsets = [CommittedRow("t", number, offset) for number, offset in committed.items()]
    groups = [GroupRow("a", "Stable", 1, offsets), GroupRow("b", "Stable", 1, offsets)]
    return Lags(Snapshot(None, [Document(partitions=rows, groups=groups)], [])).to_time()


def test_the_leader_is_asked_once_for_a_timestamp() -> None:
    times = LagCache[RecordOffset](MAX_RECORD_TIMES)
    assert times.missing(waiting({0: 4, 1: 5, 2: 10})) == {0: [("t", 0, 4)], 1: [("t", 1, 5)]}
    times.add([("t", 0, 4)], [123])
    times.add([("t", 1, 5)], [None])  # not looked up: ask again
    assert times.missing(waiting({0: 4, 1: 5})) == {1: [("t", 1, 5)]}
    times.add([("t", 1, 5)], [-1])
    assert times.missing(waiting({0: 4, 1: 5})) == {}
    assert times.answers == {("t", 0, 4): 123, ("t", 1, 5): -1}
    assert times.missing(waiting({0: 6, 1: 10})) == {0: [("t", 0, 6)]}
    assert times.answers == {}


def test_records_before_the_log_start_are_not_waited_for() -> None:
    assert LagCache[RecordOffset](MAX_RECORD_TIMES).missing(waiting({0: 4}, start=8)) == {
        0: [("t", 0, 8)]
    }
    assert LagCache[RecordOffset](MAX_RECORD_TIMES).missing(waiting({0: 4}, start=10)) == {}


def test_a_question_is_bounded_and_every_record_gets_its_turn() -> None:
    times = LagCache[RecordOffset](MAX_RECORD_TIMES)
    many = {2 * number: 0 for number in range(2 * MAX_RECORD_TIMES + 500)}
    asked = set()
    for _ in range(3):
        (places,) = times.missing(waiting(many)).values()
        assert len(places) == MAX_RECORD_TIMES
        asked.update(places)
    assert len(asked) == 2 * MAX_RECORD_TIMES + 500


# --- counts ---


def native(
    committed: dict[str, int], *, end: int = 900, records: int = 9, native: bool = True
) -> Snapshot:
    groups = [GroupRow(g, "Empty", 0, [CommittedRow("n", 0, at)]) for g, at in committed.items()]
    row = PartitionRow("n", 0, 0, end, 0, 1, records, records, has_consecutive_offsets=not native)
    return Snapshot(None, [Document(groups=groups), Document(partitions=[row])], [])


def test_the_leader_counts_once_while_nothing_moves() -> None:
    counts = LagCache[Behind](MAX_BEHIND)
    behind = ("n", 0, "g", 100)
    assert counts.missing(Lags(native({"g": 100})).to_count()) == {1: [behind]}
    counts.add([behind], [8])
    assert counts.answers == {behind: 8}
    assert counts.missing(Lags(native({"g": 100})).to_count()) == {}
    assert counts.answers == {behind: 8}
    # Something was added, something deleted in the middle, the group went on.
    for moved in (
        native({"g": 100}, end=901),
        native({"g": 100}, records=8),
        native({"g": 101}),
    ):
        (asked,) = counts.missing(Lags(moved).to_count()).values()
        assert len(asked) == 1
        assert counts.answers == {}, "a stale count is not shown"
        counts.add(asked, [7])


def test_no_leader_counts_where_offsets_tell_or_nothing_is_behind() -> None:
    counts = LagCache[Behind](MAX_BEHIND)
    assert counts.missing(Lags(native({"g": 100}, native=False)).to_count()) == {}
    assert counts.missing(Lags(native({"g": 900})).to_count()) == {}
    assert lag_of(native({"g": 900})) == [0]


def test_counts_without_an_answer_are_asked_again_and_every_group_gets_its_turn() -> None:
    counts = LagCache[Behind](MAX_BEHIND)
    many = native({f"g{number}": 5 for number in range(MAX_BEHIND * 2 + 7)})
    seen = set()
    while missing := counts.missing(Lags(many).to_count()):
        (asked,) = missing.values()
        assert len(asked) <= MAX_BEHIND
        counts.add(asked, [1 if at < 300 else None for at in range(len(asked))])
        seen |= set(asked[:300])
    assert len(seen) == len(counts.answers) == MAX_BEHIND * 2 + 7


def lag_of(found: Snapshot) -> list[float]:
    return [
        sample.value
        for family in families(found, {}, ("", ""))
        if family.name == "kafka_consumergroup_lag_sum"
        for sample in family.samples
    ]


def test_an_unknown_lag_is_no_series() -> None:
    behind = ("n", 0, "g", 100)
    document = native({"g": 100})
    cases: list[tuple[dict[Behind, int], list[float]]] = [
        ({}, []),
        ({behind: UNKNOWN}, []),
        ({behind: 3}, [3.0]),
    ]
    for counts, expected in cases:
        found = Snapshot(None, document.workers, [], counts=counts)
        assert lag_of(found) == expected
