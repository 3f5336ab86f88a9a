"""JoinGroup: who is let in. Behaviours 1 to 6 and 13 of the classic protocol, by their numbers."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import JoinedMember
from moldau.broker.group.events import Protocols
from moldau.broker.group.group_base import TimerKind
from tests.support.drivers.group_driver import GroupDriver

RANGE: Protocols = (("range", b"r"),)
BOTH: Protocols = (("range", b"r"), ("sticky", b"s"))
STICKY: Protocols = (("sticky", b"s"),)


def errors(*calls: object) -> list[ErrorCode]:
    return [call.answer.error for call in calls]  # type: ignore[attr-defined]


# 1. Empty group id


def test_2_01_an_empty_group_id_is_refused_by_all_four() -> None:
    g = GroupDriver(group_id="")
    assert g.join("a").answer.error is ErrorCode.INVALID_GROUP_ID
    assert g.sync("a", member_id="x").answer.error is ErrorCode.INVALID_GROUP_ID
    assert g.heartbeat("a", member_id="x") is ErrorCode.INVALID_GROUP_ID
    assert g.leave_members().error is ErrorCode.INVALID_GROUP_ID
    assert not g.groups.by_id


# 2. Session timeout, unknown group


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_2_02_a_session_timeout_out_of_range_is_refused(session_ms: int) -> None:
    g = GroupDriver()
    assert g.join("a", session_ms=session_ms).answer.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not g.groups.by_id
    g.join("b")
    refused = g.join("a", session_ms=session_ms)
    assert refused.answer.error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_2_02_the_limits_themselves_are_allowed(session_ms: int) -> None:
    assert GroupDriver().join("a", session_ms=session_ms).is_parked


def test_2_02_an_unknown_group_does_not_know_any_member() -> None:
    g = GroupDriver()
    assert g.join("a", member_id="a-1").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not g.groups.by_id


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


def test_2_06_from_v4_on_a_dynamic_member_gets_its_id_first() -> None:
    g = GroupDriver()
    required = g.join_once("a").answer
    assert required.error is ErrorCode.MEMBER_ID_REQUIRED
    assert required.member_id.startswith("a-")
    assert g.armed(TimerKind.PENDING_MEMBER, "a") == 10_000
    call = g.join_once("a")
    assert call.is_parked
    assert g.armed(TimerKind.PENDING_MEMBER, "a") is None
    g.sleep(3_000)
    assert call.answer.member_id == required.member_id


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


def test_2_13_a_smaller_limit_removes_no_member() -> None:
    g = GroupDriver()
    g.form("a", "b", "c")
    g.config = type(g.config)(max_size=2)
    g.restart()
    g.assert_state("Stable", generation=1)
    assert [g.heartbeat(name) for name in "abc"] == [ErrorCode.NONE] * 3
