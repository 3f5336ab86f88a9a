"""SyncGroup: behaviours 2.14 to 2.17 of the classic protocol, each by its number."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.record import GroupRecord
from moldau.broker.machine import Persisted
from tests.support.drivers.group_driver import GroupDriver


def joined(*names: str, **options: object) -> GroupDriver:
    """CompletingRebalance, generation 1; the first is the leader."""
    g = GroupDriver()
    for name in names:
        g.join(name, **options)
    g.sleep(3_000)
    if len(names) > 1:
        g.sleep(3_000)
    g.assert_state("CompletingRebalance", generation=1)
    assert g.leader() == names[0]
    return g


# 14. Refusals, and the answer when Stable


def test_2_14_unknown_group_and_unknown_member() -> None:
    g = GroupDriver()
    assert g.sync("a", member_id="x").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    g.form("a")
    assert g.sync("b", member_id="x").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    g.leave("a")
    assert g.sync("a").answer.error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_2_14_wrong_generation(generation: int) -> None:
    g = joined("a")
    refused = g.sync("a", {"a": b"1"}, generation=generation)
    assert refused.answer.error is ErrorCode.ILLEGAL_GENERATION


def test_2_14_protocol_mismatch_from_v5_on() -> None:
    g = joined("a")
    wrong_type = g.sync("a", protocol_type="connect", protocol_name="range")
    wrong_name = g.sync("a", protocol_type="consumer", protocol_name="sticky")
    assert wrong_type.answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert wrong_name.answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    right = g.sync("a", {"a": b"1"}, protocol_type="consumer", protocol_name="range")
    assert right.answer.error is ErrorCode.NONE
    assert (right.answer.protocol_type, right.answer.protocol_name) == ("consumer", "range")


def test_2_14_preparing_rebalance() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.join("a")
    assert g.sync("b").answer.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_2_14_stable_the_assignment_at_once() -> None:
    g = GroupDriver()
    g.form("a", "b")
    assert g.sync("b").answer.assignment == b"b"
    assert g.sync("a", {"a": b"other", "b": b"other"}).answer.assignment == b"a"
    assert g.sync("b").answer.assignment == b"b"  # the leader cannot change it any more


# 15. Stored first, then released


def test_2_15_followers_wait_for_the_leader() -> None:
    g = joined("a", "b", "c")
    b = g.sync("b")
    assert b.is_parked
    a = g.sync("a", {"a": b"1", "b": b"2", "c": b"3"})
    assert (a.answer.assignment, b.answer.assignment) == (b"1", b"2")
    g.assert_state("Stable")
    assert g.sync("c").answer.assignment == b"3"


def test_2_15_assignments_are_stored_before_anybody_gets_one() -> None:
    g = joined("a", "b")
    g.hold_writes = True
    b = g.sync("b")
    a = g.sync("a", {"a": b"1", "b": b"2"})
    assert a.is_parked
    assert b.is_parked
    g.assert_state("CompletingRebalance")
    assert g.write is not None
    assert isinstance(g.write.record, GroupRecord)
    assert g.write.record.state == "Stable"
    assert g.write.record.generation_id == 1
    assert [member.assignment for member in g.write.record.members] == [b"1", b"2"]
    g.write_done()
    assert (a.answer.assignment, b.answer.assignment) == (b"1", b"2")
    g.assert_state("Stable")


def test_2_15_a_follower_that_syncs_while_it_is_stored_waits_too() -> None:
    g = joined("a", "b")
    g.hold_writes = True
    g.sync("a", {"b": b"2"})
    b = g.sync("b")
    assert b.is_parked
    g.write_done()
    assert b.answer.assignment == b"2"


def test_2_15_a_member_the_leader_left_out_gets_empty_bytes() -> None:
    g = joined("a", "b")
    b = g.sync("b")
    g.sync("a", {"a": b"1", "a stranger": b"2"})
    assert b.answer.error is ErrorCode.NONE
    assert b.answer.assignment == b""


def test_2_15_what_a_follower_sends_as_assignments_is_ignored() -> None:
    g = joined("a", "b")
    b = g.sync("b", {"a": b"evil", "b": b"evil"})
    assert b.is_parked
    g.sync("a", {"b": b"2"})
    assert b.answer.assignment == b"2"


def test_2_15_a_repeated_sync_replaces_the_parked_one() -> None:
    g = joined("a", "b")
    g.hold_writes = True
    first = g.sync("a", {"a": b"1"})
    second = g.sync("a", {"a": b"another opinion"})
    assert first.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    g.write_done()
    assert second.answer.assignment == b"1"  # what is stored is what they get
    assert g.write is None


# 16. Storing fails, or is overtaken


def test_2_16_everybody_gets_the_error_then_rebalance() -> None:
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    g = joined("a", "b")
    g.hold_writes = True
    b = g.sync("b")
    a = g.sync("a", {"a": b"1", "b": b"2"})
    g.write_done(error)
    assert (a.answer.error, b.answer.error) == (error, error)
    assert (a.answer.assignment, b.answer.assignment) == (b"", b"")
    g.assert_state("PreparingRebalance", generation=1)
    g.hold_writes = False
    g.rejoin_all(["a", "b"])
    g.sync_all(["a", "b"])
    g.assert_state("Stable", generation=2)


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_2_16_the_outcome_is_dropped_when_the_state_changed(outcome: ErrorCode) -> None:
    g = joined("a", "b")
    g.hold_writes = True
    a = g.sync("a", {"a": b"1", "b": b"2"})
    g.leave("b")
    assert a.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    g.write_done(outcome)
    g.assert_state("PreparingRebalance", generation=1)


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_2_16_the_outcome_is_dropped_when_the_generation_changed(outcome: ErrorCode) -> None:
    g = joined("a", "b")
    g.hold_writes = True
    g.sync("a", {"a": b"old", "b": b"old"})
    g.leave("b")
    g.join("a")
    g.assert_state("CompletingRebalance", generation=2)
    a = g.sync("a", {"a": b"new"})
    g.write_done(outcome)  # of generation 1
    assert a.is_parked
    g.write_done()
    assert a.answer.assignment == b"new"
    assert g.record.generation_id == 2


def test_2_16_an_outcome_that_belongs_to_no_write_is_ignored() -> None:
    g = joined("a")
    g.hold_writes = True
    call = g.sync("a", {"a": b"1"})
    assert g.write is not None
    for revision in (g.write.revision - 1, g.write.revision + 1):
        g.send(Persisted(revision))
        assert call.is_parked
    g.write_done()
    assert call.answer.assignment == b"1"
    g.send(Persisted(g.record.revision, ErrorCode.COORDINATOR_NOT_AVAILABLE))  # reported twice
    g.assert_state("Stable")


# 17. Who does not sync


def test_2_17_a_member_that_does_not_sync_is_removed() -> None:
    g = joined("a", "b", session_ms=100_000, rebalance_ms=30_000)
    g.sync("a", {"a": b"1", "b": b"2"})
    g.assert_state("Stable")
    assert g.armed(TimerKind.SYNC) == 30_000
    g.sleep(30_000)
    g.assert_state("PreparingRebalance")
    assert g.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_2_17_the_leader_too_and_those_who_wait_are_sent_back() -> None:
    g = joined("a", "b", session_ms=100_000, rebalance_ms=30_000)
    b = g.sync("b")
    g.sleep(30_000)
    assert b.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert g.join("b").answer.leader == g.id_of("b")


def test_2_17_static_members_too() -> None:
    g = GroupDriver()
    options = {"session_ms": 200_000, "rebalance_ms": 30_000}
    g.form("a", "s", options={"a": options, "s": {**options, "instance": "i"}})
    g.join("a", **options)
    g.sleep(30_000)  # s did not rejoin, but it is static
    g.assert_state("CompletingRebalance", generation=2)
    g.sync("a", {"a": b"1", "s": b"2"})
    g.sleep(30_000)
    g.assert_state("PreparingRebalance")
    assert list(g.group.roster.by_id) == [g.id_of("a")]


def test_2_17_no_member_syncs_and_the_group_is_empty() -> None:
    g = joined("a", "b", session_ms=100_000, rebalance_ms=30_000)
    g.sleep(30_000)
    g.assert_state("Empty", generation=2)


def test_2_17_all_have_synced_and_nothing_is_armed() -> None:
    g = joined("a", "b")
    g.sync_all(["a", "b"])
    assert g.armed(TimerKind.SYNC) is None


def test_2_17_who_waits_for_a_slow_store_is_not_removed() -> None:
    g = joined("a", "b", rebalance_ms=30_000)
    g.hold_writes = True
    calls = g.sync_all(["a", "b"])
    g.sleep(100_000)
    assert all(call.is_parked for call in calls)
    g.write_done()
    assert [call.answer.error for call in calls] == [ErrorCode.NONE] * 2
    g.assert_state("Stable")
