"""JoinGroup: behaviours 1 to 13 of the classic protocol, each by its number."""

import pytest

from broker.errors import ErrorCode
from broker.group.effects import JoinedMember
from broker.group.events import Protocols
from broker.group.timers import TimerKind
from tests.support.group_driver import GroupDriver

RANGE: Protocols = (("range", b"r"),)
BOTH: Protocols = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST: Protocols = (("sticky", b"s"), ("range", b"r"))
STICKY: Protocols = (("sticky", b"s"),)


def errors(*calls: object) -> list[ErrorCode]:
    return [call.answer.error for call in calls]  # type: ignore[attr-defined]


# 1. Empty group id


def test_2_01_an_empty_group_id_is_refused_by_all_four() -> None:
    g = GroupDriver(group_id="")
    assert g.join("a").answer.error is ErrorCode.INVALID_GROUP_ID
    assert g.sync("a", member_id="x").answer.error is ErrorCode.INVALID_GROUP_ID
    assert g.heartbeat("a", member_id="x") is ErrorCode.INVALID_GROUP_ID
    assert g.coordinator.heartbeat("", "x", None, 1, g.now) is ErrorCode.INVALID_GROUP_ID
    assert g.leave_members().error is ErrorCode.INVALID_GROUP_ID
    assert not g.coordinator.groups


# 2. Session timeout, unknown group


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_2_02_a_session_timeout_out_of_range_is_refused(session_ms: int) -> None:
    g = GroupDriver()
    assert g.join("a", session_ms=session_ms).answer.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not g.coordinator.groups
    g.join("b")
    refused = g.join("a", session_ms=session_ms)
    assert refused.answer.error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_2_02_the_limits_themselves_are_allowed(session_ms: int) -> None:
    assert GroupDriver().join("a", session_ms=session_ms).is_parked


def test_2_02_an_unknown_group_does_not_know_any_member() -> None:
    g = GroupDriver()
    assert g.join("a", member_id="a-1").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not g.coordinator.groups


# 3. A new group


def test_2_03_a_new_group_is_empty_and_its_first_generation_is_1() -> None:
    g = GroupDriver()
    assert g.join_once("a").answer.error is ErrorCode.MEMBER_ID_REQUIRED
    g.assert_state("Empty", generation=0)
    call = g.join_once("a")
    g.assert_state("PreparingRebalance", generation=0)
    g.sleep(3_000)
    assert call.answer.generation_id == 1
    g.assert_state("CompletingRebalance", generation=1)


def test_2_03_a_group_has_an_identity_that_outlives_its_members() -> None:
    g = GroupDriver()
    g.join("a")
    identity = g.group.identity
    assert identity.startswith("cgp_")
    assert g.record.identity == identity
    g.sleep(3_000)
    g.sync("a", {"a": b"1"})
    g.leave("a")
    g.assert_state("Empty")
    g.restart()
    g.join("b")
    assert g.group.identity == identity
    g.leave("b")
    assert g.delete().answer.error is ErrorCode.NONE
    g.join("c")
    assert g.group.identity != identity


# 4. Protocols


@pytest.mark.parametrize(
    "options", [{"protocol_type": ""}, {"protocols": ()}, {"protocol_type": "", "protocols": ()}]
)
def test_2_04_no_protocol_on_an_empty_group(options: dict[str, object]) -> None:
    g = GroupDriver()
    assert g.join("a", **options).answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    g.join_once("b")
    g.assert_state("Empty")
    assert g.join("a", **options).answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_2_04_another_protocol_type_or_nothing_in_common_is_refused() -> None:
    g = GroupDriver()
    g.join("a", protocols=BOTH)
    refused = [
        g.join("b", protocols=BOTH, protocol_type="connect"),
        g.join("b", protocols=(("roundrobin", b""),)),
        g.join("b", protocols=()),
    ]
    assert errors(*refused) == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL] * 3
    assert g.join("b", protocols=STICKY).is_parked
    # range is not common to all any more
    assert g.join("c", protocols=RANGE).answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_2_04_a_protocol_is_common_again_when_the_one_without_it_leaves() -> None:
    g = GroupDriver()
    g.join("a", protocols=BOTH)
    g.join("b", protocols=STICKY)
    g.leave("b")
    assert g.join("c", protocols=RANGE).is_parked


def test_2_04_a_protocol_named_twice_counts_once() -> None:
    g = GroupDriver()
    g.join("a", protocols=(("range", b"1"), ("range", b"2")))
    b = g.join("b", protocols=RANGE)
    g.sleep(6_000)
    assert b.answer.protocol_name == "range"


def test_2_04_an_empty_group_may_change_its_protocol_type() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    a = g.join("a", member_id="", protocol_type="connect", protocols=(("v1", b""),), version=3)
    g.sleep(3_000)
    assert (a.answer.protocol_type, a.answer.protocol_name) == ("connect", "v1")


def test_2_04_other_protocol_types_pass_untouched() -> None:
    g = GroupDriver()
    protocols = (("sessioned", b"\x00\x02anything"), ("compatible", b"\xff"))
    a = g.join("a", protocol_type="connect", protocols=protocols)
    g.sleep(3_000)
    assert a.answer.members == (JoinedMember(g.id_of("a"), None, b"\x00\x02anything"),)
    assert g.sync("a", {"a": b"\x00\x01tasks"}).answer.assignment == b"\x00\x01tasks"
    assert g.sync("a").answer.protocol_type == "connect"


# 5. Versions


def test_2_05_v0_has_the_session_timeout_as_rebalance_timeout() -> None:
    g = GroupDriver()
    g.join("a", version=0, session_ms=7_000)
    g.join("b", version=0, session_ms=7_000)
    g.sleep(6_000)
    g.sync_all(["a", "b"])
    g.join("a", version=0, session_ms=7_000)
    g.join("b", version=0, session_ms=7_000, protocols=(("range", b"new"),))
    g.sync_all(["a", "b"])
    g.join("a", version=0, session_ms=7_000)
    assert g.armed(TimerKind.JOIN) == 7_000


def test_2_05_a_refusal_names_no_protocol() -> None:
    g = GroupDriver()
    answer = g.join_once("a").answer
    assert (answer.protocol_type, answer.protocol_name) == (None, None)


# 6. Member ids


def test_2_06_from_v4_on_a_dynamic_member_is_told_its_id_first() -> None:
    g = GroupDriver()
    told = g.join_once("a").answer
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("a-")
    assert g.armed(TimerKind.PENDING_MEMBER, "a") == 10_000
    call = g.join_once("a")
    assert call.is_parked
    assert g.armed(TimerKind.PENDING_MEMBER, "a") is None
    g.sleep(3_000)
    assert call.answer.member_id == told.member_id


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_2_06_before_v4_it_is_added_at_once(version: int) -> None:
    g = GroupDriver()
    assert g.join_once("a", version=version).is_parked
    g.assert_state("PreparingRebalance")


def test_2_06_a_static_member_is_never_asked() -> None:
    g = GroupDriver()
    call = g.join_once("a", instance="i1")
    assert call.is_parked
    g.sleep(3_000)
    assert call.answer.member_id.startswith("i1-")


def test_2_06_a_pending_member_blocks_completion_until_it_joins() -> None:
    g = GroupDriver()
    g.form("a", "b")
    assert g.join_once("c").answer.error is ErrorCode.MEMBER_ID_REQUIRED
    g.assert_state("Stable")  # it is not a member yet
    calls = [g.join(g.leader()), g.join("b" if g.leader() == "a" else "a")]
    assert all(call.is_parked for call in calls)
    c = g.join_once("c")
    assert c.answer.generation_id == 2
    assert all(call.answer.generation_id == 2 for call in calls)


def test_2_06_a_pending_member_blocks_completion_until_it_leaves() -> None:
    g = GroupDriver()
    g.form("a")
    g.join_once("c")
    call = g.join("a")
    assert call.is_parked
    assert g.leave("c").members[0].error is ErrorCode.NONE
    assert call.answer.generation_id == 2


def test_2_06_a_pending_member_blocks_completion_until_its_timer_fires() -> None:
    g = GroupDriver()
    g.form("a")
    g.join_once("c", session_ms=8_000)
    call = g.join("a")
    g.sleep(7_999)
    assert call.is_parked
    g.sleep(1)
    assert call.answer.generation_id == 2
    assert g.join_once("c").answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_06_a_pending_member_that_leaves_a_stable_group_does_not_disturb_it() -> None:
    g = GroupDriver()
    g.form("a")
    g.join_once("c")
    g.leave("c")
    g.assert_state("Stable", generation=1)


# 7. The initial delay


def test_2_07_the_first_join_is_answered_after_the_initial_delay() -> None:
    g = GroupDriver()
    call = g.join("a")
    g.sleep(2_999)
    assert call.is_parked
    g.sleep(1)
    assert call.answer.error is ErrorCode.NONE


def test_2_07_each_new_member_extends_the_window() -> None:
    g = GroupDriver()
    a = g.join("a", rebalance_ms=8_000)
    g.sleep(2_000)
    b = g.join("b", rebalance_ms=8_000)
    g.sleep(1_000)  # at 3 s the window is extended to 6 s
    assert a.is_parked
    g.sleep(1_000)
    g.join("c", rebalance_ms=8_000)
    g.sleep(2_000)  # at 6 s it is extended again, but only 2 s of the rebalance timeout are left
    assert b.is_parked
    g.join("d", rebalance_ms=8_000)
    g.sleep(1_999)
    assert a.is_parked
    g.sleep(1)
    assert a.answer.generation_id == 1
    assert len(a.answer.members) == 4


def test_2_07_the_largest_rebalance_timeout_bounds_the_window() -> None:
    g = GroupDriver()
    a = g.join("a", rebalance_ms=3_000)
    g.sleep(1_000)
    g.join("b", rebalance_ms=20_000)
    g.sleep(2_000)
    assert a.is_parked
    g.sleep(3_000)
    assert a.answer.generation_id == 1


def test_2_07_a_member_that_joins_again_does_not_extend_it() -> None:
    g = GroupDriver()
    g.join("a", version=3)
    g.sleep(1_000)
    again = g.join("a", member_id=g.id_of("a"))
    g.sleep(2_000)
    assert again.answer.error is ErrorCode.NONE


def test_2_07_without_a_delay_the_first_member_is_answered_at_once() -> None:
    g = GroupDriver(initial_rebalance_delay_ms=0)
    assert g.join("a").answer.generation_id == 1


def test_2_07_a_group_that_became_empty_has_its_delay_again() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    call = g.join("b")
    g.sleep(2_999)
    assert call.is_parked
    g.sleep(1)
    assert call.answer.error is ErrorCode.NONE


def test_2_07_everybody_leaving_during_the_delay_empties_the_group() -> None:
    g = GroupDriver()
    call = g.join("a")
    g.leave("a")
    assert call.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    g.assert_state("Empty")
    assert g.armed(TimerKind.INITIAL_DELAY) is None


# 8. Completion of the join


def test_2_08_a_later_join_completes_as_soon_as_everyone_waits() -> None:
    g = GroupDriver()
    g.form("a", "b")
    c = g.join("c")
    g.assert_state("PreparingRebalance")
    a = g.join("a")
    assert c.is_parked
    assert a.is_parked
    b = g.join("b")
    assert [call.answer.generation_id for call in (a, b, c)] == [2, 2, 2]


def test_2_08_at_the_rebalance_timeout_the_absent_are_removed() -> None:
    g = GroupDriver()
    options = {"a": {"session_ms": 100_000}, "b": {"session_ms": 100_000}}
    g.form("a", "b", options=options)
    c = g.join("c", rebalance_ms=30_000)
    assert g.armed(TimerKind.JOIN) == 60_000  # the largest of the members'
    a = g.join("a", session_ms=100_000)
    g.sleep(60_000)
    assert a.answer.generation_id == c.answer.generation_id == 2
    assert set(g.group.roster.by_id) == {g.id_of("a"), g.id_of("c")}
    assert g.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_08_absent_static_members_are_kept() -> None:
    g = GroupDriver()
    long = {"session_ms": 100_000}
    g.form("a", "s", options={"a": long, "s": {**long, "instance": "i"}})
    a = g.join("a", session_ms=100_000, protocols=(("range", b"new"),))
    g.sleep(60_000)
    assert a.answer.generation_id == 2
    assert g.id_of("s") in g.group.roster.by_id


def test_2_08_a_leader_that_did_not_rejoin_is_replaced() -> None:
    g = GroupDriver()
    long = {"session_ms": 100_000}
    g.form("s", "b", options={"s": {**long, "instance": "i"}, "b": long})
    assert g.leader() == "s"
    b = g.join("b", session_ms=100_000, protocols=(("range", b"new"),))
    g.sleep(60_000)
    assert b.answer.leader == g.id_of("b")
    assert {member.member_id for member in b.answer.members} == {g.id_of("s"), g.id_of("b")}


def test_2_08_with_only_absent_static_members_the_generation_stays() -> None:
    g = GroupDriver()
    long = {"session_ms": 200_000}
    g.form("s", "b", options={"s": {**long, "instance": "i"}, "b": long})
    g.leave("b")
    g.assert_state("PreparingRebalance", generation=1)
    g.sleep(60_000)
    g.assert_state("PreparingRebalance", generation=1)
    assert g.armed(TimerKind.JOIN) == 60_000
    g.sleep(140_000)  # until its session expires
    g.assert_state("Empty", generation=2)


# 9. A new generation


def test_2_09_only_the_leader_gets_the_members_with_their_metadata() -> None:
    g = GroupDriver()
    a = g.join("a", protocols=(("range", b"of a"),))
    b = g.join("b", protocols=(("range", b"of b"),), instance="i")
    g.sleep(6_000)
    assert a.answer.leader == b.answer.leader == g.id_of("a")
    assert a.answer.members == (
        JoinedMember(g.id_of("a"), None, b"of a"),
        JoinedMember(g.id_of("b"), "i", b"of b"),
    )
    assert b.answer.members == ()
    assert not a.answer.skip_assignment
    assert (b.answer.protocol_type, b.answer.protocol_name) == ("consumer", "range")


def test_2_09_each_member_votes_for_its_first_protocol_that_all_support() -> None:
    g = GroupDriver()
    g.join("a", protocols=(("new", b""), *BOTH))
    g.join("b", protocols=STICKY_FIRST)
    c = g.join("c", protocols=STICKY_FIRST)
    g.sleep(6_000)
    assert c.answer.protocol_name == "sticky"


def test_2_09_a_protocol_not_all_support_cannot_win() -> None:
    g = GroupDriver()
    g.join("a", protocols=STICKY_FIRST)
    g.join("b", protocols=STICKY_FIRST)
    c = g.join("c", protocols=RANGE)
    g.sleep(6_000)
    assert c.answer.protocol_name == "range"


def test_2_09_an_upgrade_of_the_protocol_takes_two_rounds() -> None:
    """Members are restarted one by one: first all learn the new protocol, then forget the old."""
    g = GroupDriver()
    current = {"a": RANGE, "b": RANGE}
    g.form("a", "b", options={name: {"protocols": RANGE} for name in current})
    chosen = []
    for protocols in (STICKY_FIRST, STICKY):
        for name, other in (("a", "b"), ("b", "a")):
            current[name] = protocols
            g.leave(name)
            fresh = g.join(name, member_id="", version=3, protocols=protocols)
            rejoined = g.join(other, protocols=current[other])
            assert errors(fresh, rejoined) == [ErrorCode.NONE] * 2
            g.sync_all(["a", "b"])
            chosen.append(g.group.protocol_name)
    assert chosen == ["range", "sticky", "sticky", "sticky"]


# 10. Who waits is alive


def test_2_10_a_member_that_waits_in_join_outlives_its_session() -> None:
    g = GroupDriver()
    g.form("a", "b", options={"b": {"session_ms": 50_000}})
    a = g.join("a")
    g.sleep(40_000)  # four sessions of a
    assert a.is_parked
    b = g.join("b", session_ms=50_000)
    assert errors(a, b) == [ErrorCode.NONE] * 2
    assert g.armed(TimerKind.SESSION, "a") == 10_000


def test_2_10_a_member_that_waits_in_sync_outlives_its_session() -> None:
    g = GroupDriver()
    g.join("a", session_ms=50_000)
    g.join("b")
    g.sleep(6_000)
    b = g.sync("b")
    g.sleep(40_000)
    assert b.is_parked
    g.sync("a", {"b": b"it waited"})
    assert b.answer.assignment == b"it waited"
    g.sleep(9_999)
    assert g.heartbeat("b") is ErrorCode.NONE
    g.sleep(10_000)
    assert g.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_10_a_second_join_replaces_the_parked_one() -> None:
    g = GroupDriver()
    g.form("a", "b")
    first = g.join("b", protocols=(("range", b"1"),))
    second = g.join("b", protocols=(("range", b"2"),))
    assert first.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.answer.member_id == g.id_of("b")
    assert second.is_parked
    a = g.join("a")
    assert errors(a, second) == [ErrorCode.NONE] * 2
    assert JoinedMember(g.id_of("b"), None, b"2") in a.answer.members


def test_2_10_the_parked_join_of_a_new_member_expires() -> None:
    g = GroupDriver()
    g.form("a", options={"a": {"session_ms": 1_000_000, "rebalance_ms": 1_000_000}})
    c = g.join("c")
    g.sleep(299_999)
    assert c.is_parked
    g.sleep(1)
    assert c.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.answer.member_id == ""
    assert len(g.group.roster) == 1


def test_2_10_a_new_member_that_was_answered_has_an_ordinary_session() -> None:
    g = GroupDriver()
    g.form("a")
    assert g.armed(TimerKind.NEW_MEMBER, "a") is None
    assert g.armed(TimerKind.SESSION, "a") is not None


# 11. Rejoining


def test_2_11_completing_with_the_same_protocols_answers_the_generation() -> None:
    g = GroupDriver()
    g.join("a")
    g.join("b")
    g.sleep(6_000)
    again = g.join("a")
    assert again.answer.generation_id == 1
    assert len(again.answer.members) == 2
    assert g.join("b").answer.members == ()
    g.assert_state("CompletingRebalance", generation=1)


def test_2_11_completing_with_changed_protocols_rebalances() -> None:
    g = GroupDriver()
    g.join("a")
    g.join("b")
    g.sleep(6_000)
    parked = g.sync("b")
    changed = g.join("a", protocols=(("range", b"changed"),))
    g.assert_state("PreparingRebalance")
    assert parked.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert changed.is_parked


def test_2_11_stable_the_leader_always_rebalances() -> None:
    g = GroupDriver()
    g.form("a", "b")
    assert g.join(g.leader()).is_parked
    g.assert_state("PreparingRebalance", generation=1)


def test_2_11_stable_a_follower_without_a_change_does_not() -> None:
    g = GroupDriver()
    g.form("a", "b")
    again = g.join("b")
    assert again.answer.generation_id == 1
    assert again.answer.members == ()
    g.assert_state("Stable")


@pytest.mark.parametrize(
    "protocols",
    [
        pytest.param((("range", b"other"), ("sticky", b"s")), id="bytes"),
        pytest.param(STICKY_FIRST, id="order"),
        pytest.param(RANGE, id="fewer"),
    ],
)
def test_2_11_stable_a_follower_with_a_change_does(protocols: Protocols) -> None:
    g = GroupDriver()
    g.form("a", "b", options={"a": {"protocols": BOTH}, "b": {"protocols": BOTH}})
    assert g.join("b", protocols=protocols).is_parked
    g.assert_state("PreparingRebalance")


def test_2_11_a_rejoin_brings_its_timeouts() -> None:
    g = GroupDriver()
    g.form("a")
    g.join("a", session_ms=6_000)
    assert g.armed(TimerKind.SESSION, "a") == 6_000
    g.sleep(6_000)
    g.assert_state("Empty")


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


def test_2_12_the_new_id_is_stored_before_it_is_told() -> None:
    g = static_group()
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    assert call.is_parked
    g.write_done()
    assert call.answer.error is ErrorCode.NONE
    stored = {member.member_id: member.assignment for member in g.record.members}
    assert stored == {call.answer.member_id: b"s", g.id_of("b"): b"b"}
    assert g.record.leader == call.answer.member_id


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_2_12_storing_it_fails_and_the_old_id_is_valid_again(
    fault: ErrorCode, told: ErrorCode
) -> None:
    g = static_group()
    old = g.id_of("s")
    g.hold_writes = True
    call = g.join("s", member_id="", instance="i")
    assert g.heartbeat("s", instance="i") is ErrorCode.FENCED_INSTANCE_ID
    g.write_done(fault)
    assert call.answer.error is told
    assert g.heartbeat("s", instance="i") is ErrorCode.NONE
    assert g.group.roster.leader == old
    g.sleep(9_999)
    assert g.heartbeat("s") is ErrorCode.NONE
    g.sleep(10_000)
    assert g.heartbeat("s") is ErrorCode.UNKNOWN_MEMBER_ID  # its session is watched again


def test_2_12_a_write_that_failed_in_name_only_is_put_right() -> None:
    """The old process goes on with its id; a restart of the coordinator must find that one."""
    g = static_group()
    g.hold_writes = True
    g.join("s", member_id="", instance="i")
    g.write_done(ErrorCode.REQUEST_TIMED_OUT, stored=True)
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
    g.write_done(ErrorCode.KAFKA_STORAGE_ERROR)
    assert second.answer.error is ErrorCode.NOT_COORDINATOR
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
    g.write_done(ErrorCode.KAFKA_STORAGE_ERROR)
    g.assert_state("CompletingRebalance", generation=2)
    assert g.id_of("s") == call.answer.member_id


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
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


# 13. The largest size


def test_2_13_a_new_member_over_the_limit_is_refused() -> None:
    g = GroupDriver(max_size=2)
    g.form("a", "b")
    assert g.join("c").answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.join("c", version=3).answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.join("c", instance="i").answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    g.assert_state("Stable")


def test_2_13_existing_members_stay() -> None:
    g = GroupDriver(max_size=2)
    g.form("a", "s", options={"s": {"instance": "i"}})
    assert g.join("s", member_id="", instance="i").answer.error is ErrorCode.NONE
    a = g.join("a")
    assert g.join("c").answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    s = g.join("s", instance="i")
    assert errors(a, s) == [ErrorCode.NONE] * 2


def test_2_13_a_pending_member_that_comes_too_late_is_not_waited_for() -> None:
    g = GroupDriver(max_size=2)
    g.form("a")
    g.join_once("late")
    b = g.join("b", version=3)
    a = g.join("a")
    assert a.is_parked  # the pending one is expected
    assert g.join_once("late").answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert errors(a, b) == [ErrorCode.NONE] * 2


def test_2_13_a_smaller_limit_removes_nobody() -> None:
    g = GroupDriver()
    g.form("a", "b", "c")
    g.config = type(g.config)(max_size=2)
    g.restart()
    g.assert_state("Stable", generation=1)
    assert [g.heartbeat(name) for name in "abc"] == [ErrorCode.NONE] * 3
