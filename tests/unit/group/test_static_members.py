"""JoinGroup: static members and their new processes. Behaviour 12."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.events import Protocols
from tests.support.drivers.group_driver import GroupDriver

RANGE: Protocols = (("range", b"r"),)
BOTH: Protocols = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST: Protocols = (("sticky", b"s"), ("range", b"r"))


def errors(*calls: object) -> list[ErrorCode]:
    return [call.answer.error for call in calls]  # type: ignore[attr-defined]


# 12. Static members


def static_group(**options: object) -> GroupDriver:
    """Stable: s (static, the leader) and b."""
    g = GroupDriver()
    g.form("s", "b", options={"s": {"instance": "i", **options}, "b": options})
    assert g.leader() == "s"
    return g


def test_2_12_a_new_process_gets_a_new_id_without_a_rebalance() -> None:
    g = static_group()
    old = g.id_of("s")
    call = g.join("s", member_id="", instance="i")
    assert call.answer.error is ErrorCode.NONE
    assert call.answer.member_id not in ("", old)
    assert call.answer.generation_id == 1
    g.assert_state("Stable", generation=1)
    assert g.sync("s", instance="i").answer.assignment == b"s"
    assert g.heartbeat("b") is ErrorCode.NONE


def test_2_12_v9_the_leader_gets_all_members_and_skips_the_assignment() -> None:
    g = static_group()
    answer = g.join("s", member_id="", instance="i").answer
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert {member.member_id for member in answer.members} == {answer.member_id, g.id_of("b")}


def test_2_12_v9_a_follower_skips_nothing() -> None:
    g = GroupDriver()
    g.form("a", "s", options={"s": {"instance": "i"}})
    answer = g.join("s", member_id="", instance="i").answer
    assert not answer.skip_assignment
    assert answer.members == ()
    assert answer.leader == g.id_of("a")


def test_2_12_below_v9_the_answer_names_the_old_leader() -> None:
    g = static_group()
    old = g.id_of("s")
    answer = g.join("s", member_id="", instance="i", version=8).answer
    assert answer.leader == old
    assert answer.member_id != old
    assert answer.members == ()
    assert not answer.skip_assignment
    assert g.group.roster.leader == answer.member_id  # leadership moved along


def test_2_12_the_new_id_is_stored_before_it_is_sent() -> None:
    g = static_group()
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    assert call.is_parked
    g.write_done()
    assert call.answer.error is ErrorCode.NONE
    stored = {member.member_id: member.assignment for member in g.record.members}
    assert stored == {call.answer.member_id: b"s", g.id_of("b"): b"b"}
    assert g.record.leader == call.answer.member_id


def test_2_12_storing_it_fails_and_the_old_id_is_valid_again() -> None:
    g = static_group()
    old = g.id_of("s")
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    assert g.heartbeat("s", instance="i") is ErrorCode.FENCED_INSTANCE_ID
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert call.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert g.heartbeat("s", instance="i") is ErrorCode.NONE
    assert g.group.roster.leader == old
    g.sleep(9_999)
    assert g.heartbeat("s") is ErrorCode.NONE
    g.sleep(10_000)
    assert g.heartbeat("s") is ErrorCode.UNKNOWN_MEMBER_ID  # its session is watched again


def test_2_12_a_write_that_failed_in_name_only_is_put_right() -> None:
    """The old process goes on with its id; a restart of the groups must find that one."""
    g = static_group()
    g.hold_writes = True
    g.join("s", member_id="", instance="i")
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE, stored=True)
    assert g.id_of("s") not in {member.member_id for member in g.record.members}
    g.hold_writes = False
    g.sleep(5_000)
    g.restart()
    assert g.heartbeat("s", instance="i") is ErrorCode.NONE
    assert g.sync("s", instance="i").answer.assignment == b"s"


def test_2_12_replaced_twice_while_the_store_is_slow() -> None:
    g = static_group()
    g.hold_writes = True
    first = g.join("s", member_id="", instance="i")
    second = g.join("s", member_id="", instance="i")
    assert first.answer.error is ErrorCode.FENCED_INSTANCE_ID
    g.write_done()
    assert second.is_parked
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert second.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    g.hold_writes = False
    third = g.join("s", member_id="", instance="i")
    assert third.answer.error is ErrorCode.NONE
    assert len(g.group.roster) == 2


def test_2_12_many_new_processes_share_a_write() -> None:
    g = GroupDriver()
    names = [f"s{number}" for number in range(20)]
    g.form(*names, options={name: {"instance": name} for name in names})
    g.hold_writes = True
    calls = [g.join(name, member_id="", instance=name) for name in names]
    g.write_done()
    assert [call.is_parked for call in calls] == [False] + [True] * 19
    g.write_done()
    assert errors(*calls) == [ErrorCode.NONE] * 20
    assert g.write is None
    g.assert_state("Stable", generation=1)


def test_2_12_a_rebalance_overtakes_the_write() -> None:
    g = static_group()
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    b = g.join("b", protocols=(("range", b"changed"),))
    assert call.answer.generation_id == b.answer.generation_id == 2  # both waited
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    g.assert_state("CompletingRebalance", generation=2)
    assert g.id_of("s") == call.answer.member_id


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_2_12_a_rebalance_that_waits_for_others_takes_the_join_along(outcome: ErrorCode) -> None:
    g = GroupDriver()
    g.form("s", "b", "c", options={"s": {"instance": "i"}})
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    g.leave("c")
    g.assert_state("PreparingRebalance")
    g.write_done(outcome)
    assert call.is_parked
    b = g.join("b")
    assert call.answer.generation_id == b.answer.generation_id == 2


def test_2_12_a_new_process_of_one_that_had_not_synced_is_to_sync_itself() -> None:
    g = GroupDriver()
    long = {"session_ms": 100_000, "rebalance_ms": 30_000}
    g.join("a", **long)
    g.join("s", instance="i", **long)
    g.sleep(6_000)
    g.sync("a", {"a": b"1", "s": b"2"})
    g.assert_state("Stable")
    g.join("s", member_id="", instance="i", **long)
    g.sleep(30_000)
    g.assert_state("PreparingRebalance")
    assert list(g.group.roster.by_id) == [g.id_of("a")]


def test_2_12_the_voted_protocol_changes_so_it_rebalances() -> None:
    g = GroupDriver()
    g.form("s", options={"s": {"instance": "i", "protocols": BOTH}})
    assert g.group.protocol_name == "range"
    call = g.join("s", member_id="", instance="i", protocols=STICKY_FIRST)
    assert call.answer.generation_id == 2
    assert call.answer.protocol_name == "sticky"


def test_2_12_other_protocols_that_leave_the_vote_as_it_was_do_not() -> None:
    g = static_group(protocols=BOTH)
    call = g.join("s", member_id="", instance="i", protocols=RANGE)
    assert call.answer.generation_id == 1
    g.assert_state("Stable")


def test_2_12_the_parked_join_of_the_old_process_is_fenced() -> None:
    g = static_group()
    old = g.join("s", instance="i")
    g.assert_state("PreparingRebalance")
    fresh = g.join("s", member_id="", instance="i")
    assert old.answer.error is ErrorCode.FENCED_INSTANCE_ID
    b = g.join("b")
    assert fresh.answer.generation_id == b.answer.generation_id == 2


def test_2_12_completing_a_new_process_starts_over() -> None:
    g = GroupDriver()
    g.join("a")
    g.join("s", instance="i")
    g.sleep(6_000)
    old = g.sync("s", instance="i")
    fresh = g.join("s", member_id="", instance="i")
    assert old.answer.error is ErrorCode.FENCED_INSTANCE_ID
    g.assert_state("PreparingRebalance")
    assert fresh.is_parked
    a = g.join("a")
    assert errors(a, fresh) == [ErrorCode.NONE] * 2


def test_2_12_a_wrong_member_id_is_fenced() -> None:
    g = static_group()
    old = g.id_of("s")
    g.join("s", member_id="", instance="i")
    assert g.join("s", member_id=old, instance="i").answer.error is ErrorCode.FENCED_INSTANCE_ID
    stale = g.sync("s", member_id=old, instance="i")
    assert stale.answer.error is ErrorCode.FENCED_INSTANCE_ID
    assert g.heartbeat("s", member_id=old, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert g.heartbeat("s", member_id=old) is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.check_commit("s", member_id=old, instance="i") is ErrorCode.FENCED_INSTANCE_ID


def test_2_12_an_unknown_instance_with_a_known_id_is_unknown() -> None:
    g = static_group()
    call = g.join("b", instance="never seen")
    assert call.answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_12_a_restart_within_the_session_is_not_noticed_by_the_others() -> None:
    g = static_group()
    g.changes.clear()
    g.sleep(8_000)
    assert g.heartbeat("b") is ErrorCode.NONE
    g.join("s", member_id="", instance="i")
    g.sync("s", instance="i")
    g.sleep(8_000)
    assert g.heartbeat("b") is ErrorCode.NONE
    assert g.heartbeat("s", instance="i") is ErrorCode.NONE
    assert not g.changes
