"""Offsets: deleted and expired, behaviours 2.23 and 2.25, as far as the group decides them."""

from moldau.broker.errors import ErrorCode
from moldau.broker.group.commits import (
    check_offset_delete,
    check_topic_delete,
    expired_offsets,
    is_forgettable,
)
from moldau.broker.group.offsets import (
    CommittedOffsets,
    PendingOffset,
    TopicPartition,
    new_commit,
)
from tests.support.drivers.group_driver import GroupDriver
from tests.support.drivers.subscriptions import consumer, keys, subscription

DAY = 24 * 3_600_000
WEEK = 7 * DAY


# 23. OffsetDelete (DeleteGroups: test_leave.py)


def test_2_23_only_topics_without_subscribers_can_be_deleted() -> None:
    g = GroupDriver()
    a, b = {"protocols": consumer("t", "u")}, {"protocols": consumer("v")}
    g.form("a", "b", options={"a": a, "b": b})
    assert check_offset_delete(g.group) is ErrorCode.NONE
    subscribed = g.group.subscribed_topics()
    assert subscribed == frozenset({"t", "u", "v"})
    assert check_topic_delete(subscribed, "v") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert check_topic_delete(subscribed, "w") is ErrorCode.NONE


def test_2_23_an_empty_group_subscribes_to_nothing() -> None:
    g = GroupDriver()
    g.form("a", options={"a": {"protocols": consumer("t")}})
    g.leave("a")
    assert check_offset_delete(g.group) is ErrorCode.NONE
    assert g.group.subscribed_topics() == frozenset()


def test_2_23_members_that_are_not_consumers() -> None:
    g = GroupDriver()
    g.join("a", protocol_type="connect")
    assert check_offset_delete(g.group) is ErrorCode.NON_EMPTY_GROUP


def test_2_23_an_unreadable_subscription_may_be_to_anything() -> None:
    g = GroupDriver()
    g.form("a", "b", options={"a": {"protocols": consumer("t")}})  # b's is no subscription
    assert g.group.subscribed_topics() is None
    assert check_topic_delete(None, "t") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_2_23_while_rebalancing_to_another_protocol_all_that_is_said_counts() -> None:
    g = GroupDriver()
    both = (("range", subscription("t")), ("sticky", subscription("t")))
    g.form("a", "b", options={"a": {"protocols": both}, "b": {"protocols": both}})
    g.join("a", protocols=(("sticky", subscription("t", "u")),))
    assert g.group.subscribed_topics() == frozenset({"t", "u"})


def test_2_23_a_group_that_is_being_deleted_is_not_found() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    g.hold_writes = True
    g.delete()
    assert check_offset_delete(g.group) is ErrorCode.GROUP_ID_NOT_FOUND


def test_2_23_deleting_a_group_deletes_its_offsets() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    g.delete()
    g.restart()
    g.join("a")
    assert g.offsets.is_empty


# 25. Expiry


def test_2_25_an_empty_groups_offsets_count_from_when_it_became_empty() -> None:
    g = GroupDriver()
    g.form("a", options={"a": {"protocols": consumer("t"), "session_ms": 1_800_000}})
    g.commit("t", 0, new_commit(1, g.now - 10 * WEEK))
    g.commit("u", 0, new_commit(1, g.now - 10 * WEEK))
    g.leave("a")
    g.sleep(WEEK - 1)
    assert expired_offsets(g.group, g.offsets, g.now) == []
    g.sleep(1)
    assert expired_offsets(g.group, g.offsets, g.now) == keys("t", "u")


def test_2_25_that_time_survives_a_restart() -> None:
    g = GroupDriver()
    g.form("a")
    g.commit("t", 0, new_commit(1, g.now))
    g.leave("a")
    g.sleep(WEEK - 1)
    g.restart()
    assert expired_offsets(g.group, g.offsets, g.now) == []
    g.sleep(1)
    assert expired_offsets(g.group, g.offsets, g.now) == keys("t")


def test_2_25_a_simple_groups_count_from_the_commit() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    g.sleep(DAY)
    g.commit("u", 0, new_commit(1, g.now))
    g.sleep(WEEK - DAY)
    assert expired_offsets(g.group, g.offsets, g.now) == keys("t")


def test_2_25_a_stable_groups_only_for_topics_it_no_longer_subscribes_to() -> None:
    g = GroupDriver()
    g.form("a", options={"a": {"protocols": consumer("t")}})
    g.commit("t", 0, new_commit(1, g.now - WEEK))
    g.commit("u", 0, new_commit(1, g.now - WEEK))
    g.commit("v", 0, new_commit(1, g.now - WEEK + 1))
    assert expired_offsets(g.group, g.offsets, g.now) == keys("u")


def test_2_25_never_of_a_group_whose_subscription_is_unknown() -> None:
    g = GroupDriver()
    g.form("a")
    g.commit("u", 0, new_commit(1, g.now - WEEK))
    assert expired_offsets(g.group, g.offsets, g.now) == []


def test_2_25_never_of_other_members_than_consumers() -> None:
    g = GroupDriver()
    g.join("a", protocol_type="connect")
    g.sleep(3_000)
    g.sync("a", {"a": b""})
    g.assert_state("Stable")
    g.commit("u", 0, new_commit(1, g.now - WEEK))
    assert expired_offsets(g.group, g.offsets, g.now) == []


def test_2_25_never_while_rebalancing() -> None:
    g = GroupDriver()
    g.form("a", "b", options={name: {"protocols": consumer("t")} for name in "ab"})
    g.commit("u", 0, new_commit(1, g.now - WEEK))
    g.join("a", protocols=consumer("t"))
    g.assert_state("PreparingRebalance")
    assert expired_offsets(g.group, g.offsets, g.now) == []
    g.join("b", protocols=consumer("t"))
    g.assert_state("CompletingRebalance")
    assert expired_offsets(g.group, g.offsets, g.now) == []


def test_2_25_never_one_a_transaction_is_about_to_replace() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now - WEEK))
    g.offsets.pending.add(7, {TopicPartition("t", 0): PendingOffset(1, 1, new_commit(2, g.now))})
    assert expired_offsets(g.group, g.offsets, g.now) == []


def test_2_25_a_retention_of_its_own_before_v5() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now, retention_time_ms=1_000))
    g.sleep(999)
    assert expired_offsets(g.group, g.offsets, g.now) == []
    g.sleep(1)
    assert expired_offsets(g.group, g.offsets, g.now) == keys("t")


def test_2_25_nothing_left_and_empty_means_forgettable() -> None:
    g = GroupDriver()
    g.form("a")
    assert not is_forgettable(g.group, g.offsets)
    g.commit("t", 0, new_commit(1, g.now))
    g.leave("a")
    assert not is_forgettable(g.group, g.offsets)
    g.offsets.remove("t", 0)
    assert is_forgettable(g.group, g.offsets)
    g.join_once("b")
    assert not is_forgettable(g.group, g.offsets)  # a pending member is about to join


def test_2_25_a_pending_transaction_keeps_a_group() -> None:
    g = GroupDriver()
    g.commit("t", 0, new_commit(1, g.now))
    g.offsets.pending.add(7, {TopicPartition("t", 0): PendingOffset(1, 1, new_commit(2, g.now))})
    g.offsets.remove("t", 0)
    assert not is_forgettable(g.group, g.offsets)


def test_2_25_an_offset_that_is_being_committed_does_not_expire() -> None:
    g = GroupDriver()
    place = TopicPartition("t", 0)
    g.commit(*place, new_commit(1, g.now - WEEK))
    assert g.groups.expired_offsets("g", g.now) == [place]
    g.groups.commit_begins("g", [place])
    g.groups.commit_begins("g", [place])
    assert g.groups.expired_offsets("g", g.now) == []
    g.groups.commit_failed("g", [place])
    assert g.groups.expired_offsets("g", g.now) == []  # the other one is still under way
    g.commit(*place, new_commit(2, g.now))
    assert g.groups.expired_offsets("g", g.now) == []
    assert g.groups.expired_offsets("g", g.now + WEEK) == [place]
    assert g.groups.expired_offsets("unknown", g.now) == []


def test_2_25_a_group_to_which_a_commit_is_under_way_is_not_forgotten() -> None:
    g = GroupDriver()
    assert not g.groups.is_forgettable("g")  # there is none
    g.form("a")
    g.leave("a")
    assert g.groups.is_forgettable("g")
    place = TopicPartition("t", 0)
    g.groups.commit_begins("g", [place])
    assert not g.groups.is_forgettable("g")
    g.groups.commit_failed("g", [place])
    assert g.groups.is_forgettable("g")
    g.groups.commit_failed("g", [place])  # that was never begun
    assert g.groups.is_forgettable("g")


def test_2_25_deleting_a_topic_deletes_its_offsets() -> None:
    offsets = CommittedOffsets(
        {TopicPartition(topic, n): new_commit(n, 0) for topic in "tu" for n in (0, 1)}
    )
    doomed = offsets.of_topic("t")
    assert doomed == [TopicPartition("t", 0), TopicPartition("t", 1)]
    for key in doomed:
        offsets.remove(*key)
    assert [key for key, _ in offsets] == [TopicPartition("u", 0), TopicPartition("u", 1)]
    assert offsets.of_topic("t") == []
    offsets.remove("t", 0)  # once more does no harm
