"""Which leaders are asked to count, and for how long a count is good."""

from __future__ import annotations

from moldau.broker.metrics.document import CommittedRow, Document, GroupRow, PartitionRow
from moldau.broker.metrics.record_counts import MAX_BEHIND, UNKNOWN, Behind
from moldau.ops.http.families import families
from moldau.ops.http.known_counts import KnownCounts
from moldau.ops.http.lag import Lags
from moldau.ops.http.snapshot import Snapshot


def reports(
    committed: dict[str, int], *, end: int = 900, records: int = 9, native: bool = True
) -> Snapshot:
    groups = [GroupRow(g, "Empty", 0, [CommittedRow("n", 0, at)]) for g, at in committed.items()]
    row = PartitionRow("n", 0, 0, end, 0, 1, records, records, has_consecutive_offsets=not native)
    return Snapshot(None, [Document(groups=groups), Document(partitions=[row])], [])


def test_the_leader_counts_once_while_nothing_moves() -> None:
    known = KnownCounts()
    behind = ("n", 0, "g", 100)
    assert known.wanted(Lags(reports({"g": 100}))) == {1: [behind]}
    known.answered([behind], [8])
    assert known.counts == {behind: 8}
    assert known.wanted(Lags(reports({"g": 100}))) == {}
    assert known.counts == {behind: 8}
    # Something was added, something deleted in the middle, the group went on.
    for moved in (
        reports({"g": 100}, end=901),
        reports({"g": 100}, records=8),
        reports({"g": 101}),
    ):
        (asked,) = known.wanted(Lags(moved)).values()
        assert len(asked) == 1
        assert known.counts == {}, "what was true before is not shown"
        known.answered(asked, [7])


def test_nothing_is_asked_where_offsets_tell_or_nothing_is_behind() -> None:
    known = KnownCounts()
    assert known.wanted(Lags(reports({"g": 100}, native=False))) == {}
    assert known.wanted(Lags(reports({"g": 900}))) == {}
    (sample,) = lag_of(reports({"g": 900}))
    assert sample == 0


def test_what_was_not_looked_up_is_asked_again_and_all_have_their_turn() -> None:
    known = KnownCounts()
    many = reports({f"g{number}": 5 for number in range(MAX_BEHIND * 2 + 7)})
    seen = set()
    while wanted := known.wanted(Lags(many)):
        (asked,) = wanted.values()
        assert len(asked) <= MAX_BEHIND
        known.answered(asked, [1 if at < 300 else None for at in range(len(asked))])
        seen |= set(asked[:300])
    assert len(seen) == len(known.counts) == MAX_BEHIND * 2 + 7


def lag_of(found: Snapshot) -> list[float]:
    return [
        sample.value
        for family in families(found, {}, ("", ""))
        if family.name == "kafka_consumergroup_lag_sum"
        for sample in family.samples
    ]


def test_an_unknown_lag_is_no_series() -> None:
    behind = ("n", 0, "g", 100)
    document = reports({"g": 100})
    cases: list[tuple[dict[Behind, int], list[float]]] = [
        ({}, []),
        ({behind: UNKNOWN}, []),
        ({behind: 3}, [3.0]),
    ]
    for counts, expected in cases:
        found = Snapshot(None, document.workers, [], counts=counts)
        assert lag_of(found) == expected
