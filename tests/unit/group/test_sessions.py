"""Heartbeat and session: behaviours 2.18 and 2.19, and timers that fire late or early."""

from moldau.broker.errors import ErrorCode
from moldau.broker.group.group_base import TimerKind
from moldau.broker.machine import ArmTimer, TimerFired, TimerKey
from tests.support.drivers.group_driver import GroupDriver

# 18. Heartbeats


def test_2_18_unknown_group_and_unknown_member() -> None:
    g = GroupDriver()
    assert g.heartbeat("a", member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    g.form("a")
    assert g.heartbeat("a", member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.heartbeat("a", instance="x") is ErrorCode.UNKNOWN_MEMBER_ID
    g.leave("a")
    assert g.heartbeat("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_18_fenced_instance() -> None:
    g = GroupDriver()
    g.form("s", options={"s": {"instance": "i"}})
    old = g.id_of("s")
    g.join("s", member_id="", instance="i")
    assert g.heartbeat("s", member_id=old, instance="i") is ErrorCode.FENCED_INSTANCE_ID


def test_2_18_wrong_generation() -> None:
    g = GroupDriver()
    g.form("a")
    assert g.heartbeat("a", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert g.heartbeat("a", generation=2) is ErrorCode.ILLEGAL_GENERATION


def test_2_18_a_heartbeat_of_another_generation_renews_nothing() -> None:
    g = GroupDriver()
    g.form("a")
    g.sleep(5_000)
    g.heartbeat("a", generation=0)
    g.sleep(5_000)
    g.assert_state("Empty")


def test_2_18_preparing_rebalance_renews_the_session() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.join("a")
    for _ in range(5):
        g.sleep(9_000)
        assert g.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(g.group.roster) == 2


def test_2_18_completing_and_stable() -> None:
    g = GroupDriver()
    g.join("a")
    g.sleep(3_000)
    g.assert_state("CompletingRebalance")
    assert g.heartbeat("a") is ErrorCode.NONE
    g.sync("a", {"a": b""})
    assert g.heartbeat("a") is ErrorCode.NONE


def test_2_18_while_loading() -> None:
    g = GroupDriver()
    g.groups.start_loading(0)
    assert g.heartbeat("a", member_id="x") is ErrorCode.NONE


def test_2_18_a_heartbeat_arms_nothing() -> None:
    """What makes a heartbeat cheap: the deadline moves, the timer stays."""
    g = GroupDriver()
    g.form("a")
    g.sleep(4_000)
    armed = g.armed(TimerKind.SESSION, "a")
    assert g.heartbeat("a") is ErrorCode.NONE
    assert not g.group.effects
    assert g.armed(TimerKind.SESSION, "a") == armed
    g.sleep(9_999)
    g.assert_state("Stable")
    g.sleep(1)
    g.assert_state("Empty")


# 19. Session expiry


def test_2_19_a_silent_member_is_removed_and_the_group_rebalances() -> None:
    g = GroupDriver()
    g.form("a", "b", options={"a": {"session_ms": 60_000}})
    g.sleep(9_999)
    g.assert_state("Stable")
    g.sleep(1)
    g.assert_state("PreparingRebalance")
    assert g.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert g.join("a").answer.generation_id == 2


def test_2_19_the_last_absent_member_expires_and_the_join_completes() -> None:
    g = GroupDriver()
    g.form("a", "b")
    a = g.join("a")
    g.sleep(9_999)
    assert a.is_parked
    g.sleep(1)
    assert a.answer.generation_id == 2


def test_2_19_completing_rebalance_starts_over() -> None:
    g = GroupDriver()
    g.join("a")
    g.join("b")
    g.sleep(6_000)
    b = g.sync("b")
    g.sleep(10_000)  # the leader is silent
    assert b.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert g.join("b").answer.leader == g.id_of("b")


def test_2_19_the_parked_join_of_a_member_that_expires_is_answered() -> None:
    g = GroupDriver(new_member_join_timeout_ms=20_000)
    g.form("a", options={"a": {"session_ms": 100_000}})
    new = g.join("b", version=3)
    g.sleep(20_000)
    assert new.answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_19_everybody_expires_and_the_group_is_empty_and_stored() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.sleep(5_000)
    g.heartbeat("b")
    g.sleep(5_000)
    g.assert_state("PreparingRebalance", generation=1)
    g.sleep(5_000)
    g.assert_state("Empty", generation=2)
    assert g.record.state == "Empty"
    assert g.record.members == ()
    assert not g.timers


def test_2_19_an_empty_group_that_could_not_be_stored_is_stored_later() -> None:
    g = GroupDriver()
    g.form("a")
    g.hold_writes = True
    g.leave("a")
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert g.record.state == "Stable"
    assert g.armed(TimerKind.PERSIST_RETRY) == 5_000
    g.hold_writes = False
    g.sleep(5_000)
    assert g.record.state == "Empty"
    assert g.armed(TimerKind.PERSIST_RETRY) is None


# Timers that do not fire when they should


def test_a_coordinator_that_slept_gives_members_time_to_be_heard() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.jump(120_000)
    g.assert_state("Stable")
    assert g.heartbeat("a") is ErrorCode.NONE
    g.sleep(5_000)  # the grace is over, and b said nothing
    g.assert_state("PreparingRebalance")
    assert list(g.group.roster.by_id) == [g.id_of("a")]


def test_time_is_given_once_even_if_the_coordinator_is_always_late() -> None:
    g = GroupDriver()
    g.form("a")
    g.jump(20_000)
    g.assert_state("Stable")
    g.jump(20_000)
    g.assert_state("Empty")


def test_a_timer_that_fires_too_early_is_armed_again() -> None:
    g = GroupDriver()
    g.join("a")
    key = TimerKey("g", TimerKind.INITIAL_DELAY)
    at = g.timers[key]
    assert g.group.handle(TimerFired(key), at - 1) == [ArmTimer(key, at)]
    g.assert_state("PreparingRebalance")


def test_a_timer_that_was_not_armed_does_nothing() -> None:
    g = GroupDriver()
    g.form("a")
    for kind in TimerKind:
        g.send(TimerFired(TimerKey("g", kind, "a stranger")))
    g.send(TimerFired(TimerKey("another group", TimerKind.JOIN)))
    g.assert_state("Stable", generation=1)
