"""Offsets: committed and fetched, behaviours 2.21 and 2.22, as far as the group decides them."""

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.commits import (
    check_metadata,
)
from moldau.broker.group.offsets import (
    CommittedOffset,
    CommittedOffsets,
    PendingOffset,
    TopicPartition,
    new_commit,
)
from tests.support.drivers.group_driver import GroupDriver

# 21. OffsetCommit


def test_2_21_a_simple_consumer_commits_to_an_unknown_or_empty_group() -> None:
    g = GroupDriver()
    assert g.check_commit() is ErrorCode.NONE
    assert not g.groups.by_id  # a check creates nothing
    g.commit("t", 0, new_commit(5, g.now))
    g.assert_state("Empty", generation=0)
    assert g.record.protocol_type is None
    assert g.check_commit() is ErrorCode.NONE
    g.form("a")
    g.leave("a")
    assert g.check_commit() is ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "error"),
    [(10, ErrorCode.GROUP_ID_NOT_FOUND), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
    + [(version, ErrorCode.ILLEGAL_GENERATION) for version in range(2, 9)],
)
def test_2_21_an_unknown_group_has_no_generation(version: int, error: ErrorCode) -> None:
    g = GroupDriver()
    assert g.check_commit(member_id="x", generation=0, version=version) is error
    assert g.check_commit(member_id="x", generation=7, version=version) is error


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Stable"])
def test_2_21_a_group_with_members_wants_a_member_id(state: str) -> None:
    g = GroupDriver()
    g.join("a")
    if state != "PreparingRebalance":
        g.sleep(3_000)
    if state == "Stable":
        g.sync("a", {"a": b""})
    g.assert_state(state)
    assert g.check_commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.check_commit(member_id="x", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_21_the_current_generation_commits() -> None:
    g = GroupDriver()
    g.form("a")
    assert g.check_commit("a") is ErrorCode.NONE
    assert g.check_commit("a", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert g.check_commit("a", generation=2) is ErrorCode.ILLEGAL_GENERATION
    assert g.check_commit("a", generation=-1) is ErrorCode.ILLEGAL_GENERATION
    assert g.check_commit("a", instance="x") is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_21_an_empty_group_has_no_members_to_commit() -> None:
    g = GroupDriver()
    g.form("a")
    g.leave("a")
    assert g.check_commit("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_2_21_completing_rebalance() -> None:
    g = GroupDriver()
    g.join("a")
    g.sleep(3_000)
    assert g.check_commit("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_2_21_preparing_rebalance_takes_the_old_generation_and_renews_the_session() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.join("a")
    for _ in range(5):
        g.sleep(9_000)
        assert g.check_commit("b") is ErrorCode.NONE
    g.assert_state("PreparingRebalance", generation=1)
    assert len(g.group.roster) == 2


def test_2_21_a_commit_in_stable_renews_the_session() -> None:
    g = GroupDriver()
    g.form("a")
    for _ in range(5):
        g.sleep(9_000)
        assert g.check_commit("a") is ErrorCode.NONE
    g.assert_state("Stable")


def test_2_21_a_zombie_cannot_commit() -> None:
    g = GroupDriver()
    g.form("a", "b")
    g.sleep(5_000)
    g.heartbeat("a")
    g.sleep(5_000)
    assert g.check_commit("b") is ErrorCode.UNKNOWN_MEMBER_ID
    g.join("a")
    g.sync("a", {"a": b""})
    assert g.check_commit("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.check_commit("a", generation=1) is ErrorCode.ILLEGAL_GENERATION


def test_2_21_metadata_up_to_4096_characters() -> None:
    limit = GroupDriver().config.offset_metadata_max_size
    assert check_metadata(None, limit) is ErrorCode.NONE
    assert check_metadata("ü" * 4_096, limit) is ErrorCode.NONE
    assert check_metadata("x" * 4_097, limit) is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_2_21_transactions_commit_while_completing_and_without_a_member() -> None:
    g = GroupDriver()
    g.join("a")
    g.sleep(3_000)
    assert g.check_commit("a", transactional=True) is ErrorCode.NONE
    assert g.check_commit(transactional=True) is ErrorCode.NONE
    assert g.check_commit("a", generation=0, transactional=True) is ErrorCode.ILLEGAL_GENERATION


def test_2_21_another_workers_group_and_one_that_loads() -> None:
    g = GroupDriver()
    g.groups.start_loading(0)
    assert g.check_commit() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    g.give_up()
    assert g.check_commit() is ErrorCode.NOT_COORDINATOR
    g.commit("t", 0, new_commit(1, g.now))  # was under way
    assert not g.groups.by_id


# 22. OffsetFetch


def test_2_22_what_was_committed_is_given_back_whole() -> None:
    g = GroupDriver()
    committed = new_commit(42, g.now, leader_epoch=7, metadata="note")
    g.commit("t", 3, committed)
    assert g.offsets.get("t", 3) == CommittedOffset(42, 7, "note", g.now, None)
    assert g.offsets.get("t", 4) is None
    assert g.offsets.get("u", 3) is None


def test_2_22_all_topics() -> None:
    g = GroupDriver()
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        g.commit(topic, partition, new_commit(partition, g.now))
    found = {topic: sorted(partitions) for topic, partitions in g.offsets.topics().items()}
    assert found == {"t": [0, 1], "u": [0]}


def test_2_22_offsets_survive_a_restart() -> None:
    g = GroupDriver()
    g.form("a")
    g.commit("t", 0, new_commit(9, g.now, metadata="m"))
    g.restart()
    assert g.offsets.get("t", 0) == new_commit(9, g.now, metadata="m")


def test_2_22_an_offset_of_an_open_transaction_is_unstable() -> None:
    offsets = CommittedOffsets()
    offsets.apply({TopicPartition("t", 0): new_commit(1, 0)})
    offsets.pending.add(77, {TopicPartition("t", 0): PendingOffset(1, 1, new_commit(2, 0))})
    assert offsets.is_pending("t", 0)
    assert not offsets.is_pending("t", 1)
    committed = offsets.get("t", 0)
    assert committed is not None
    assert committed.offset == 1
    offsets.pending.remove(77, TopicPartition("t", 0))
    assert not offsets.is_pending("t", 0)
