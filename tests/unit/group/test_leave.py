"""LeaveGroup and DeleteGroups: behaviours 2.20 and 2.23."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import LeaveAnswer, LeftMember
from moldau.broker.group.events import LeavingMember
from moldau.broker.group.offsets import new_commit
from tests.support.drivers.group_driver import GroupDriver

UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


# 20. Leave


def test_2_20_a_member_leaves_and_the_others_rebalance() -> None:
    g = GroupDriver()
    g.form("a", "b")
    assert g.leave("b") == LeaveAnswer(
        ErrorCode.NONE, (LeftMember(g.id_of("b"), None, ErrorCode.NONE),)
    )
    g.assert_state("PreparingRebalance")
    assert g.heartbeat("b") is UNKNOWN
    assert g.join("a").answer.generation_id == 2


def test_2_20_the_last_one_leaves_an_empty_group_that_is_stored() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    g.assert_state("Empty", generation=2)
    assert g.record.state == "Empty"
    assert not g.timers


def test_2_20_an_unknown_group_does_not_know_any_of_them() -> None:
    g = GroupDriver()
    answer = g.leave_members(LeavingMember("x"), LeavingMember("", "i"))
    assert answer.error is ErrorCode.NONE
    assert answer.members == (LeftMember("x", None, UNKNOWN), LeftMember("", "i", UNKNOWN))


def test_2_20_an_error_for_each_member_and_one_rebalance_for_all() -> None:
    g = GroupDriver()
    g.form("a", "b", "c", "s", options={"s": {"instance": "i"}})
    g.changes.clear()
    answer = g.leave_members(
        LeavingMember(g.id_of("b"), reason="scaled down"),
        LeavingMember("unknown"),
        LeavingMember(g.id_of("c")),
        LeavingMember("wrong", "i"),
        LeavingMember(g.id_of("a"), "no such instance"),
    )
    assert answer.error is ErrorCode.NONE
    assert [member.error for member in answer.members] == [
        ErrorCode.NONE,
        UNKNOWN,
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        UNKNOWN,
    ]
    assert [change.state for change in g.changes] == ["PreparingRebalance"]
    assert "scaled down" in g.changes[0].reason
    assert len(g.group.roster) == 2


def test_2_20_an_administrator_removes_a_static_member_by_its_instance() -> None:
    g = GroupDriver()
    g.form("a", "s", options={"s": {"instance": "i"}})
    answer = g.leave_members(LeavingMember("", "i"), LeavingMember("", "j"), LeavingMember(""))
    assert answer.members == (
        LeftMember("", "i", ErrorCode.NONE),
        LeftMember("", "j", UNKNOWN),
        LeftMember("", None, UNKNOWN),
    )
    g.assert_state("PreparingRebalance")
    assert g.heartbeat("s", instance="i") is UNKNOWN


def test_2_20_the_same_member_twice() -> None:
    g = GroupDriver()
    g.form("a", "b")
    answer = g.leave("b", "b")
    assert [member.error for member in answer.members] == [ErrorCode.NONE, UNKNOWN]


def test_2_20_a_pending_member_may_leave() -> None:
    g = GroupDriver()
    g.join_once("a")
    assert g.leave("a").members[0].error is ErrorCode.NONE
    assert not g.timers
    assert g.join_once("a").answer.error is UNKNOWN


def test_2_20_who_leaves_while_it_waits_is_answered() -> None:
    g = GroupDriver()
    g.form("a", "b", "c")
    join = g.join("b", protocols=(("range", b"changed"),))
    g.leave("b")
    assert join.answer.error is UNKNOWN
    g.rejoin_all(["a", "c"])
    g.assert_state("CompletingRebalance")
    sync = g.sync("c")
    g.leave("c")
    assert sync.answer.error is UNKNOWN
    g.assert_state("PreparingRebalance")


def test_2_20_the_one_everybody_waited_for_leaves() -> None:
    g = GroupDriver()
    g.form("a", "b")
    a = g.join("a")
    g.leave("b")
    assert a.answer.generation_id == 2
    assert len(a.answer.members) == 1


# 23. DeleteGroups (offsets: test_offsets.py)


def test_2_23_a_group_with_members_is_not_deleted() -> None:
    g = GroupDriver()
    g.join("a")
    assert g.delete().answer.error is ErrorCode.NON_EMPTY_GROUP
    g.sleep(3_000)
    assert g.delete().answer.error is ErrorCode.NON_EMPTY_GROUP
    g.sync("a", {"a": b""})
    assert g.delete().answer.error is ErrorCode.NON_EMPTY_GROUP


def test_2_23_an_unknown_group_is_not_found() -> None:
    assert GroupDriver().delete().answer.error is ErrorCode.GROUP_ID_NOT_FOUND


def test_2_23_deleted_once_the_store_has_forgotten_it() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    g.hold_writes = True
    call = g.delete()
    assert call.is_parked
    assert g.write is not None
    assert g.write.record is None
    g.assert_state("Dead")
    g.write_done()
    assert call.answer.error is ErrorCode.NONE
    assert g.stored is None
    assert not g.groups.by_id
    assert not g.groups.offsets


def test_2_23_while_it_is_being_deleted_clients_are_asked_to_retry() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    g.hold_writes = True
    g.delete()
    again = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert g.join("a").answer.error is again
    assert g.join("b", member_id="").answer.error is again
    assert g.sync("a").answer.error is again
    assert g.heartbeat("a") is again
    assert g.leave("a").error is again
    assert g.delete().answer.error is again
    assert g.check_commit() is again


@pytest.mark.parametrize("happened", [True, False])
def test_2_23_a_deletion_that_failed_is_tried_until_the_store_has_forgotten_it(
    happened: bool,
) -> None:
    """It may have happened, and the offsets may be gone: the group must not come back."""
    g = GroupDriver()
    g.form("a")
    g.commit("t", 0, new_commit(1, g.now))
    g.leave("a")
    g.hold_writes = True
    call = g.delete()
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE, stored=happened)
    assert call.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(2):
        g.assert_state("Dead")
        assert g.join("b").answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        g.sleep(5_000)
        g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE, stored=happened)
    g.sleep(5_000)
    g.write_done()
    assert g.stored is None
    assert not g.groups.by_id
    assert not g.timers
    assert g.delete().answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    g.hold_writes = False
    g.form("b")
    assert g.offsets.is_empty


def test_2_23_a_pending_member_does_not_keep_a_group() -> None:
    g = GroupDriver()
    g.join_once("a")
    assert g.delete().answer.error is ErrorCode.NONE
    assert not g.timers
    assert g.join_once("a").answer.error is UNKNOWN


def test_2_23_deleted_while_an_earlier_write_is_under_way() -> None:
    g = GroupDriver()
    g.form("a")
    g.hold_writes = True
    g.leave("a")
    call = g.delete()
    g.write_done()
    assert g.record.state == "Empty"
    assert call.is_parked
    g.write_done()
    assert call.answer.error is ErrorCode.NONE
    assert g.stored is None


def test_2_23_deleted_after_a_write_that_failed() -> None:
    g = GroupDriver()
    g.form("a")
    g.hold_writes = True
    g.leave("a")
    call = g.delete()
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    g.write_done()
    assert call.answer.error is ErrorCode.NONE
    assert not g.groups.by_id
    assert not g.timers


def test_2_23_given_up_while_a_deletion_is_tried_again() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    g.hold_writes = True
    g.delete()
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    g.sleep(5_000)
    g.give_up()
    g.write_done()
    assert not g.timers
    assert not g.groups.by_id
