"""Offsets of open transactions, as far as a group's memory knows them; behaviours 7.24 to 7.26."""

from __future__ import annotations

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.offsets import CommittedOffsets, PendingOffset, TopicPartition, new_commit
from moldau.broker.group.pending_offsets import ANY_NUMBER, Ended, Pending
from moldau.broker.group.record import LoadedGroup
from tests.support.drivers.group_driver import GroupDriver

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
WEEK = 7 * 24 * 3_600_000


def stored(g: GroupDriver, producer_id: int, number: int, *places: TopicPartition) -> None:
    """A TxnOffsetCommit that is in the store."""
    offsets = {place: new_commit(100 + number, g.now) for place in places}
    commit = g.groups.txn_commit_begins("g", producer_id, number, offsets)
    g._run(g.groups.txn_commit_ended("g", commit, g.now, may_be_stored=True))


def committed(g: GroupDriver) -> dict[TopicPartition, int]:
    return {place: one.offset for place, one in g.offsets}


# 24. Pending until the marker


def test_7_24_pending_offsets_are_not_the_groups_own() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    stored(g, 7, 1, T0, U0)
    assert committed(g) == {T0: 1}
    assert "u" not in g.offsets.topics()
    assert g.offsets.is_pending("t", 0)
    assert g.offsets.is_pending("u", 0)
    assert not g.offsets.is_pending("t", 1)


def test_7_24_a_marker_commits_what_the_store_says() -> None:
    g = GroupDriver()
    stored(g, 7, 1, T0, T1)
    pending = g.groups.pending
    assert pending.to_end("g", 7, 1) == {T0: [], T1: []}
    outcome = {T0: Ended(2, new_commit(5, g.now)), T1: Ended(0, None)}
    pending.ended("g", 7, 1, outcome)
    assert committed(g) == {T0: 5}
    assert not g.offsets.pending
    assert pending.groups_of(0, 7) == []


def test_7_24_a_marker_concerns_its_own_number_only() -> None:
    g = GroupDriver()
    stored(g, 7, 2, T0)
    pending = g.groups.pending
    for other in (1, 3):
        assert pending.to_end("g", 7, other) == {}
        pending.ended("g", 7, other, {T0: Ended(0, None)})
        assert g.offsets.is_pending("t", 0)
    assert pending.to_end("g", 8, 2) == {}
    assert pending.to_end("g", 7, ANY_NUMBER) == {T0: []}
    pending.ended("g", 7, ANY_NUMBER, {T0: Ended(0, None)})
    assert not g.offsets.is_pending("t", 0)


def test_7_24_a_marker_concerns_only_groups_with_offsets_of_its_producer() -> None:
    offsets = {str(number): CommittedOffsets() for number in range(100)}
    pending = Pending(offsets, lambda name: int(name) % 2)
    for name, producer_id in (("4", 7), ("5", 7), ("6", 7), ("8", 8)):
        commit = pending.begins(name, producer_id, 1, {T0: new_commit(1, 0)})
        pending.ends(name, commit, may_be_stored=True)
    assert pending.groups_of(0, 7) == ["4", "6"]
    assert pending.groups_of(1, 7) == ["5"]
    assert pending.groups_of(0, 8) == ["8"]
    pending.ended("4", 7, 1, {T0: Ended(0, None)})
    assert pending.groups_of(0, 7) == ["6"]
    pending.given_up(0)
    assert pending.groups_of(0, 7) == []
    assert pending.groups_of(1, 7) == ["5"]


def test_7_24_a_marker_concerns_what_is_being_stored() -> None:
    """And what comes of it then is of no account: it is behind the commit on the connection."""
    g = GroupDriver()
    pending = g.groups.pending
    commit = g.groups.txn_commit_begins("g", 7, 1, {T0: new_commit(1, g.now)})
    assert pending.groups_of(0, 7) == ["g"]
    assert pending.to_end("g", 7, 1) == {T0: []}
    pending.ended("g", 7, 1, {T0: Ended(0, None)})
    g._run(g.groups.txn_commit_ended("g", commit, g.now, may_be_stored=True))
    assert not g.offsets.pending
    assert pending.groups_of(0, 7) == []


@pytest.mark.parametrize("may_be_stored", [True, False])
def test_7_24_what_may_be_in_the_store_waits_for_its_marker(may_be_stored: bool) -> None:
    g = GroupDriver()
    commit = g.groups.txn_commit_begins("g", 7, 1, {T0: new_commit(1, g.now)})
    g._run(g.groups.txn_commit_ended("g", commit, g.now, may_be_stored=may_be_stored))
    assert ("g" in g.groups.by_id) == may_be_stored
    assert g.groups.pending.groups_of(0, 7) == (["g"] if may_be_stored else [])
    assert g.groups.pending.to_end("g", 7, 1) == ({T0: []} if may_be_stored else {})


def test_7_24_pending_offsets_are_loaded_and_given_up() -> None:
    g = GroupDriver()
    g.give_up()
    found = {7: {T0: PendingOffset(3, 41, new_commit(1, g.now)), T1: PendingOffset(3, 40, None)}}
    g.groups.start_loading(0)
    g._run(g.groups.finish_loading(0, [LoadedGroup("g", None, {}, found)], g.now))
    assert {place: one for _, place, one in g.offsets.pending} == found[7]
    assert g.groups.pending.groups_of(0, 7) == ["g"]
    assert g.groups.pending.next_order() > 41
    g.give_up()
    assert g.groups.pending.groups_of(0, 7) == []


def test_7_24_a_commit_that_was_under_way_when_the_slot_was_given_up() -> None:
    g = GroupDriver()
    commit = g.groups.txn_commit_begins("g", 7, 1, {T0: new_commit(1, g.now)})
    g.give_up()
    assert g.groups.txn_commit_ended("g", commit, g.now, may_be_stored=True) == []
    assert not g.groups.by_id
    assert g.groups.pending.groups_of(0, 7) == []


# 25. Who may commit


def test_7_25_generations_members_and_instances() -> None:
    g = GroupDriver()

    def check(**options: object) -> ErrorCode:
        return g.check_commit(transactional=True, version=5, **options)  # type: ignore[arg-type]

    assert check() is ErrorCode.NONE
    assert check(member_id="x", generation=1) is ErrorCode.ILLEGAL_GENERATION
    g.form("a", options={"a": {"instance": "i"}})
    assert check() is ErrorCode.NONE
    assert check(name="a", instance="i") is ErrorCode.NONE
    assert check(name="a", generation=7) is ErrorCode.ILLEGAL_GENERATION
    assert check(member_id="x", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(member_id="x", generation=1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    g.join("b")
    g.assert_state("PreparingRebalance")
    assert check(name="a", instance="i") is ErrorCode.NONE


# 26. Order, expiry, deletion


def test_7_26_a_commit_overtakes_what_was_sent_before_it() -> None:
    g = GroupDriver()
    stored(g, 7, 1, T0, T1)
    order = g.groups.commit_begins("g", [T0])
    stored(g, 8, 1, T0)  # sent after it
    g._run(g.groups.committed("g", {T0: new_commit(5, g.now)}, g.now, order))
    assert {
        (producer_id, place): one.committed is None for producer_id, place, one in g.offsets.pending
    } == {(7, T0): True, (7, T1): False, (8, T0): False}
    assert g.offsets.is_pending("t", 0)


def test_7_26_a_commit_finds_all_that_it_may_overtake() -> None:
    g = GroupDriver()
    pending = g.groups.pending
    assert pending.at("g", [T0]) == []
    under_way = g.groups.txn_commit_begins("g", 9, 1, {T0: new_commit(1, g.now)})
    assert pending.at("g", [T0, T1]) == [(9, T0)]  # of a group that does not exist yet
    stored(g, 7, 1, T0, T1)
    stored(g, 8, 1, T1)
    assert pending.at("g", [T0]) == [(7, T0), (9, T0)]
    assert pending.at("g", [T1, U0]) == [(7, T1), (8, T1)]
    assert pending.at("other", [T0]) == []
    g._run(g.groups.txn_commit_ended("g", under_way, g.now, may_be_stored=False))
    assert pending.at("g", [T0]) == [(7, T0)]


def test_7_26_of_two_transactions_the_offset_sent_later_stays() -> None:
    g = GroupDriver()
    stored(g, 7, 1, T0)
    stored(g, 8, 1, T0)
    orders = {producer_id: one.order for producer_id, _, one in g.offsets.pending}
    assert g.groups.pending.to_end("g", 8, 1) == {T0: [7]}
    g.groups.pending.ended("g", 8, 1, {T0: Ended(orders[8], new_commit(6, g.now))})
    assert [one.committed for _, _, one in g.offsets.pending] == [None]
    assert g.offsets.is_pending("t", 0)


def test_7_26_a_group_with_pending_offsets_does_not_expire() -> None:
    g = GroupDriver()
    stored(g, 7, 1, T0)
    g.sleep(2 * WEEK)
    assert g.groups.expired_offsets("g", g.now) == []
    assert not g.groups.is_forgettable("g")
    g.groups.pending.ended("g", 7, 1, {T0: Ended(0, None)})
    assert g.groups.is_forgettable("g")


def test_7_26_a_deleted_topic_takes_its_pending_offsets_with_it() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    stored(g, 7, 1, T0, T1, U0)
    assert g.offsets.of_topic("t") == [T0, T1]
    assert g.offsets.of_topic("u") == [U0]
