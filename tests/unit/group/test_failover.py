"""Loading, restoring and giving up groups: behaviours 2.26 and 2.27."""

import msgspec
import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic import sessions
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import DeleteAnswer
from moldau.broker.group.events import Delete, Join
from moldau.broker.group.group_base import LIMIT, ORIGIN_S, TimerKind
from moldau.broker.group.groups import Groups
from moldau.broker.group.offsets import TopicPartition, new_commit
from moldau.broker.group.record import LoadedGroup, encode
from moldau.broker.machine import Reply
from tests.support.drivers.group_driver import GroupDriver
from tests.support.drivers.group_world import START_MS

# 26. Loading and restoring


def test_2_26_while_it_loads() -> None:
    g = GroupDriver()
    g.groups.start_loading(0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert g.join("a").answer.error is loading
    # Java's client ends with the same error in answer to a SyncGroup.
    assert g.sync("a", member_id="x").answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert g.leave_members().error is loading
    assert g.delete().answer.error is loading
    assert g.heartbeat("a", member_id="x") is ErrorCode.NONE
    assert not g.groups.by_id


def test_2_26_a_restart_causes_no_rebalance() -> None:
    g = GroupDriver()
    g.form("a", "b", "s", options={"s": {"instance": "i"}})
    leader, before = g.group.roster.leader, g.record
    g.restart()
    g.assert_state("Stable", generation=1)
    assert g.group.roster.leader == leader
    assert [g.heartbeat(name) for name in "ab"] == [ErrorCode.NONE] * 2
    assert g.heartbeat("s", instance="i") is ErrorCode.NONE
    assert [g.sync(name).answer.assignment for name in "abs"] == [b"a", b"b", b"s"]
    assert g.check_commit("a") is ErrorCode.NONE
    assert g.record == before  # nothing had to be written
    assert g.write is None


def test_2_26_sessions_start_again() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.sleep(9_000)
    g.restart()
    g.sleep(9_999)
    assert g.heartbeat("a") is ErrorCode.NONE
    g.sleep(1)
    g.assert_state("PreparingRebalance")
    assert list(g.group.roster.by_id) == [g.id_of("a")]


def test_2_26_a_follower_that_joins_again_is_recognised_as_unchanged() -> None:
    """All its protocols are stored, not only the one that was voted for."""
    g = GroupDriver()
    both = {"protocols": (("range", b"r"), ("sticky", b"s"))}
    g.form("a", "b", options={"a": both, "b": both})
    g.restart()
    assert g.join("b", **both).answer.generation_id == 1
    g.assert_state("Stable")


def test_2_26_a_static_member_that_restarts_with_the_coordinator() -> None:
    g = GroupDriver()
    g.form("a", "s", options={"s": {"instance": "i"}})
    g.restart()
    assert g.join("s", member_id="", instance="i").answer.generation_id == 1
    assert g.sync("s", instance="i").answer.assignment == b"s"
    g.assert_state("Stable")


def test_2_26_in_mid_rebalance_the_last_stable_generation_comes_back() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.join("c")
    g.rejoin_all(["a", "b"])
    g.assert_state("CompletingRebalance", generation=2)
    g.restart()
    g.assert_state("Stable", generation=1)
    assert g.heartbeat("a") is ErrorCode.ILLEGAL_GENERATION
    assert g.heartbeat("c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.join("a").is_parked  # the leader
    g.join("b")
    c = g.join("c", member_id="", version=3)
    assert c.is_parked
    g.rejoin_all(["a", "b"])
    g.sync_all(["a", "b", "c"])
    g.assert_state("Stable")
    assert g.group.generation_id >= 2


def test_2_26_an_assignment_that_was_stored_but_not_sent() -> None:
    g = GroupDriver()
    g.join("a")
    g.join("b")
    g.sleep(6_000)
    g.hold_writes = True
    calls = [g.sync("b"), g.sync("a", {"a": b"1", "b": b"2"})]
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE, stored=True)
    assert [call.answer.error for call in calls] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    g.restart()
    g.assert_state("Stable", generation=1)
    assert g.sync("b").answer.assignment == b"2"


def test_2_26_an_empty_group_stays_empty() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    identity = g.group.identity
    g.restart()
    g.assert_state("Empty", generation=2)
    assert g.group.identity == identity
    assert not g.timers
    g.form("b")
    g.assert_state("Stable", generation=3)


def test_2_26_revisions_go_on() -> None:
    g = GroupDriver()
    g.form("a")
    before = g.record.revision
    g.restart()
    g.leave("a")
    assert g.record.revision == before + 1


def test_2_26_offsets_without_a_record_become_a_simple_group() -> None:
    groups = Groups(GroupConfig(), IdGenerator(), lambda _: 3)
    groups.start_loading(3)
    offsets = {TopicPartition("t", 0): new_commit(4, START_MS)}
    effects = groups.finish_loading(3, [LoadedGroup("g", None, offsets)], START_MS)
    assert [type(effect).__name__ for effect in effects] == ["Persist"]
    assert groups.describe("g").state == "Empty"
    assert groups.offsets["g"].get("t", 0) == offsets[TopicPartition("t", 0)]


# 27. Giving up


def test_2_27_parked_joins_are_sent_away() -> None:
    g = GroupDriver()
    g.form("a", "b")
    a, c = g.join("a"), g.join("c")
    g.give_up()
    assert a.answer.error is ErrorCode.NOT_COORDINATOR
    assert a.answer.member_id == g.ids["a"]  # it keeps its id for the next groups
    assert c.answer.error is ErrorCode.NOT_COORDINATOR
    assert not g.timers
    assert not g.groups.by_id
    assert g.heartbeat("a", generation=1) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_2_27_parked_syncs_are_sent_away_and_the_write_means_nothing(outcome: ErrorCode) -> None:
    g = GroupDriver()
    g.join("a")
    g.join("b")
    g.sleep(6_000)
    g.hold_writes = True
    calls = g.sync_all(["a", "b"])
    g.give_up()
    assert [call.answer.error for call in calls] == [ErrorCode.NOT_COORDINATOR] * 2
    g.write_done(outcome)
    assert not g.groups.by_id


def test_2_27_requests_that_wait_for_the_store_are_sent_away() -> None:
    g = GroupDriver()
    g.form("s", options={"s": {"instance": "i"}})
    g.hold_writes = True
    static = g.join("s", member_id="", instance="i")
    g.give_up()
    assert static.answer.error is ErrorCode.NOT_COORDINATOR

    g = GroupDriver()
    g.form("a")
    g.leave("a")
    g.hold_writes = True
    delete = g.delete()
    g.give_up()
    assert delete.answer.error is ErrorCode.NOT_COORDINATOR


def test_2_27_a_group_held_on_to_answers_nothing_but_come_again() -> None:
    g = GroupDriver()
    g.form("a")
    group = g.group
    g.give_up()
    assert group.is_gone
    assert (
        sessions.heartbeat(group, g.ids["a"], None, 1, g.now) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert group.handle(Delete("d"), g.now) == [
        Reply("d", DeleteAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    ]
    assert group.unload(g.now) == []


def test_2_27_only_the_groups_of_that_slot() -> None:
    groups = Groups(GroupConfig(), IdGenerator(), len)
    for slot in (1, 2):
        groups.start_loading(slot)
        groups.finish_loading(slot, [], START_MS)
    for name in ("x", "yy"):
        groups.handle(name, a_join(), START_MS)
    groups.give_up(1, START_MS)
    assert list(groups.by_id) == ["yy"]
    assert groups.availability("x") is ErrorCode.NOT_COORDINATOR
    assert groups.availability("yy") is ErrorCode.NONE
    assert groups.availability("zzz") is ErrorCode.NOT_COORDINATOR


def test_limits_can_change_while_groups_are_there() -> None:
    g = GroupDriver()
    g.form("a")
    g.groups.use_config(GroupConfig(max_size=1))
    assert g.join("b").answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_restored_group_watches_every_member() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.restart()
    assert [g.armed(TimerKind.SESSION, name) for name in "ab"] == [10_000] * 2


def a_join() -> Join:
    return Join(object(), "", None, "c", "/h", 10_000, 60_000, "consumer", (("range", b""),))


def test_2_26_a_record_that_may_be_older_than_what_members_have_seen() -> None:
    """Restored as it is; the next generation is one that no member can have seen."""
    g = GroupDriver()
    g.form("a", "b")
    floor = 3_600_000
    g.restart(min_generation=floor)
    g.assert_state("Stable", generation=1)
    assert g.heartbeat("a") is ErrorCode.NONE
    g.rejoin_all(["a", "b"])
    g.assert_state("CompletingRebalance", generation=floor)


def test_2_26_a_generation_above_the_limit_comes_down_with_the_next_one() -> None:
    """Members compare for equality only, so none of them has to join again for it."""
    g = GroupDriver()
    g.form("a", "b")
    g.restart(min_generation=LIMIT - 1)
    for generation in (LIMIT - 1, (START_MS // 1000 - ORIGIN_S) // 60):
        g.rejoin_all(["a", "b"])
        g.assert_state("CompletingRebalance", generation=generation)
        g.sync_all(["a", "b"])
    stored = msgspec.structs.replace(g.record, generation_id=217_000_000)
    g.stored = encode(stored)
    g.restart(min_generation=3_700_000)
    g.assert_state("Stable", generation=217_000_000)
    assert g.heartbeat("a", generation=217_000_000) is ErrorCode.NONE
    g.rejoin_all(["a", "b"])
    g.assert_state("CompletingRebalance", generation=3_700_000)


def test_2_26_a_group_is_stored_again() -> None:
    """The store lost it: at once, with the next write, or at the end of the rebalance."""
    g = GroupDriver()
    g.form("a", "b")
    before = g.record
    g.stored = None
    g._run(g.group.store_again(g.now))
    assert msgspec.structs.replace(g.record, revision=before.revision) == before
    assert g.record.revision == before.revision + 1

    g.hold_writes = True
    g._run(g.group.store_again(g.now))
    g._run(g.group.store_again(g.now))
    g.write_done()
    g.write_done()
    assert g.write is None
    assert g.record.revision == before.revision + 3

    g.leave("b")
    g._run(g.group.store_again(g.now))
    g.assert_state("PreparingRebalance")
    assert g.write is None
