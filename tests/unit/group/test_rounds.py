"""JoinGroup: how a round completes and who may join again. Behaviours 7 to 11, by their numbers."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import JoinedMember
from moldau.broker.group.events import Protocols
from moldau.broker.group.group_base import TimerKind
from tests.support.drivers.group_driver import GroupDriver

RANGE: Protocols = (("range", b"r"),)
BOTH: Protocols = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST: Protocols = (("sticky", b"s"), ("range", b"r"))
STICKY: Protocols = (("sticky", b"s"),)


def errors(*calls: object) -> list[ErrorCode]:
    return [call.answer.error for call in calls]  # type: ignore[attr-defined]


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
