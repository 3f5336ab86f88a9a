"""Members of the consumer protocol: leaving, static ones, expressions, offsets (8.21 to 8.28)."""

import time

import pytest

from moldau.broker import expressions
from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerConfig
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.modern.heartbeat import check_request
from moldau.broker.group.offsets import Committer
from tests.support.drivers.consumer_driver import ConsumerDriver
from tests.support.drivers.group_world import completed

TOPIC = ["t"]


def code(g: ConsumerDriver, name: str, **options: object) -> ErrorCode:
    return g.heartbeat(name, **options).answer.error  # type: ignore[arg-type]


def test_8_21_leaving_frees_partitions_at_once() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("b", topics=TOPIC)
    g.settle("a", "b")
    g.heartbeat("a", epoch=-1)
    g.epochs_are(3)
    assert g.told(g.beat("b")) == {("t", 0), ("t", 1)}


def test_8_22_leaving_for_a_while() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC, instance="i")
    g.heartbeat("b", topics=TOPIC)
    for _ in range(4):
        g.sleep(5_000)
        g.beat("a", instance="i")
        g.beat("b")
    left = g.heartbeat("a", epoch=-2, instance="i").answer
    assert (left.error, left.epoch) == (ErrorCode.NONE, -2)
    had = set(g.owned["b"])
    for _ in range(8):
        g.sleep(5_000)
        g.beat("b")
    assert g.owned["b"] == had
    g.sleep(4_000)
    g.beat("b")
    g.sleep(1_000)  # the session of the other is over
    g.settle("b")
    assert g.owned["b"] == {("t", 0), ("t", 1)}


def test_8_23_the_return_of_an_instance() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC, instance="i")
    assert code(g, "a2", topics=TOPIC, instance="i") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert code(g, "a2", epoch=1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert code(g, "a2", epoch=1, instance="unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(g, "a2", epoch=-1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    g.heartbeat("a", epoch=-2, instance="i")
    back = g.heartbeat("a2", topics=TOPIC, instance="i")
    assert back.answer.epoch == 1
    assert g.told(back) == {("t", 0), ("t", 1)}
    g.epochs_are(1)
    assert code(g, "a", epoch=1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    g.restart()
    assert g.heartbeat("a2", instance="i").answer.epoch == 1


def test_8_23_the_answer_to_a_returning_instance_is_lost() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC, instance="i")
    g.heartbeat("a", epoch=-2, instance="i")
    g.heartbeat("a2", epoch=0, topics=TOPIC, instance="i")
    again = g.heartbeat("a2", epoch=0, topics=TOPIC, instance="i")
    assert g.told(again) == {("t", 0), ("t", 1)}


def test_8_24_whole_names_beside_names() -> None:
    g = ConsumerDriver(orders=1, orders_eu=1, xorders=1, other=1)
    joined = g.heartbeat("a", pattern="orders.*", topics=["other"])
    assert g.told(joined) == {("orders", 0), ("orders_eu", 0), ("other", 0)}
    g.sleep(1_000)
    taken_back = g.heartbeat("a", pattern="", owned=[("other", 0)])
    assert g.told(taken_back) == {("other", 0)}


def test_8_24_a_topic_that_is_made_later() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", pattern="t.*")
    g.beat("a")
    g.make_topic("t2", 1)
    g.make_topic("u", 1)
    for _ in range(3):
        g.sleep(5_000)
        g.beat("a")
    assert g.owned["a"] == {("t", 0), ("t2", 0)}


def test_8_24_all_topics_are_matched_after_a_restart() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", pattern="t.*")
    g.topics["t2"] = g.topics["t"]._replace(name="t2", topic_id=b"2" * 16)  # unseen
    g.restart()
    g.settle("a")
    assert g.owned["a"] == {("t", 0), ("t2", 0)}


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "((a{100}){100}){100}", "a" * 5_000])
def test_8_24_what_does_not_compile(pattern: str) -> None:
    event = ConsumerHeartbeat(
        None, "m", 0, "", "", rebalance_timeout_ms=1, pattern=pattern, owned=frozenset()
    )
    answer = check_request(ConsumerConfig(), event, 1)
    assert answer is not None
    assert answer.error is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_8_25_until_it_is_resolved_an_expression_stands_for_nothing() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", topics=TOPIC)
    g.hold_jobs = True
    joined = g.heartbeat("b", pattern="t.*")
    assert (joined.answer.epoch, g.told(joined)) == (1, set())
    g.epochs_are(1)
    g.hold_jobs = False
    g.jobs_done()
    g.sleep(1_000)
    g.epochs_are(2)


def test_8_25_hard_expressions_are_matched_in_slices() -> None:
    """Matching takes linear time, and never many names at once."""
    names = ["a" * 200 + str(number) for number in range(2_000)]
    steps = expressions.match_steps(["(a+)+b"], names)
    longest = 0.0
    began = time.thread_time()
    slices = 0
    while True:
        before = time.thread_time()
        try:
            next(steps)
        except StopIteration:
            break
        longest = max(longest, time.thread_time() - before)
        slices += 1
    took = time.thread_time() - began
    assert slices >= 2_000
    assert longest < took / 4
    assert completed(expressions.match_steps(["a*1"], names))["a*1"] == {"a" * 200 + "1"}


def commit(
    g: ConsumerDriver, member: str, epoch: int, *partitions: tuple[str, int], version: int = 9
) -> ErrorCode:
    committer = Committer(member, None, epoch, version, partitions)
    return g.groups.check_commit("g", committer, g.now)


def test_8_26_commits_by_epoch() -> None:
    g = ConsumerDriver(t=4)
    assert commit(g, "", -1, ("t", 0)) is ErrorCode.NONE  # the group does not exist
    g.heartbeat("a", topics=TOPIC)
    assert commit(g, "a", 1, ("t", 0), version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(g, "a", 1, ("t", 0)) is ErrorCode.NONE
    assert commit(g, "a", 2, ("t", 0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(g, "", -1, ("t", 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(g, "b", 1, ("t", 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    g.heartbeat("b", topics=TOPIC)
    g.settle("a", "b")
    kept, (moved, *_) = sorted(g.owned["a"]), sorted(g.owned["b"])
    assert g.epochs["a"] == 2
    assert commit(g, "a", 1, *kept) is ErrorCode.NONE  # it has had them since then
    assert commit(g, "a", 1, kept[0], moved) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(g, "b", 1, moved) is ErrorCode.STALE_MEMBER_EPOCH
    topic_id = g.topics["t"].topic_id
    by_id = Committer("a", None, 1, 10, [(topic_id, kept[0][1])])
    assert g.groups.check_commit("g", by_id, g.now) is ErrorCode.NONE


def test_8_26_what_is_to_be_given_back_may_be_committed() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("b", topics=TOPIC)
    g.sleep(1_000)
    had = set(g.owned["a"])
    g.beat("a")
    (moved,) = had - g.owned["a"]
    assert commit(g, "a", 1, moved) is ErrorCode.NONE
    g.beat("a")
    assert commit(g, "a", 1, moved) is ErrorCode.STALE_MEMBER_EPOCH


def test_8_27_who_may_fetch_offsets() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", topics=TOPIC)
    check = g.groups.check_fetch
    assert check("g", None, -1) is ErrorCode.NONE
    assert check("g", "a", 1) is ErrorCode.NONE
    assert check("g", "b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("g", "a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("unknown", "a", 2) is ErrorCode.NONE


def test_8_33_deleting_a_group() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", topics=TOPIC)
    assert g.delete().answer.error is ErrorCode.NON_EMPTY_GROUP
    g.heartbeat("a", epoch=-1)
    assert g.delete().answer.error is ErrorCode.NONE
    assert g.stored is None
    assert "g" not in g.groups.by_id


@pytest.mark.parametrize("step", ["at rest", "to be revoked", "revoked", "taken"])
def test_8_35_a_killed_owner_is_back_with_the_same_epochs(step: str) -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    if step != "at rest":
        g.heartbeat("b", topics=TOPIC)
        g.sleep(1_000)
        g.beat("a")
    if step in ("revoked", "taken"):
        g.beat("a")
    if step == "taken":
        g.beat("b")
    before = g.groups.describe_consumers("g")
    g.restart()
    assert g.groups.describe_consumers("g") == before
    for name in list(g.epochs):
        assert g.heartbeat(name).answer.error is ErrorCode.NONE
    names = list(g.epochs)
    g.settle(*names)
    assert g.consumers.group_epoch == len(names)


def test_8_35_a_topic_that_grew_meanwhile_raises_the_epoch_once() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.topics["t"] = g.topics["t"]._replace(partitions=3)  # while the worker was down
    g.restart()
    assert g.consumers.group_epoch == 2
    g.settle("a")
    assert len(g.owned["a"]) == 3
    g.restart()
    assert g.consumers.group_epoch == 2


def test_8_36_a_write_that_fails_is_tried_again() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.hold_writes = True
    joined = g.heartbeat("b", topics=TOPIC)
    for _ in range(3):
        g.sleep(1_000)
        while g.write is not None:
            g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        g.beat("a")
    assert joined.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    g.forget_answers()
    while g.write is not None:
        g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    g.hold_writes = False
    for _ in range(5):
        g.sleep(5_000)
        for name in "ab":
            answer = g.beat(name) if name in g.epochs else g.heartbeat(name, topics=TOPIC)
            assert answer.answer.error is ErrorCode.NONE
    g.assert_state("Stable")
    g.epochs_are(2)
    assert len(g.owned["a"]) == len(g.owned["b"]) == 1
