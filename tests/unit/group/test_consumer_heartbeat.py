"""ConsumerGroupHeartbeat: requests, epochs, the target, reconciling (8.1 to 8.20)."""

from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerConfig
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.group_base import LIMIT, ORIGIN_S
from moldau.broker.group.modern.heartbeat import check_request
from moldau.broker.group.offsets import Committer, TopicPartition, new_commit
from tests.support.drivers.consumer_driver import ConsumerDriver
from tests.support.drivers.group_world import START_MS

TOPIC = ["t"]


def request(**given: Any) -> ConsumerHeartbeat:
    fields: dict[str, Any] = {
        "call": None,
        "member_id": "m",
        "epoch": 0,
        "client_id": "c",
        "client_host": "h",
        "rebalance_timeout_ms": 1,
        "names": (),
        "owned": frozenset(),
    }
    return ConsumerHeartbeat(**(fields | given))


@pytest.mark.parametrize(
    ("given", "version", "is_valid"),
    [
        ({}, 1, True),
        ({"instance_id": ""}, 1, False),
        ({"rack_id": ""}, 1, False),
        ({"member_id": ""}, 1, False),
        ({"member_id": ""}, 0, True),
        ({"member_id": "", "epoch": 1}, 0, False),
        ({"member_id": "", "epoch": -1}, 0, False),
        ({"epoch": -3}, 1, False),
        ({"epoch": -2}, 1, False),
        ({"epoch": -2, "instance_id": "i"}, 1, True),
        ({"epoch": -1}, 1, True),
    ],
)
def test_8_1_what_a_request_needs(given: dict[str, Any], version: int, is_valid: bool) -> None:
    assert (check_request(ConsumerConfig(), request(**given), version) is None) == is_valid


@pytest.mark.parametrize(
    ("given", "is_valid"),
    [
        ({"rebalance_timeout_ms": -1}, False),
        ({"owned": None}, False),
        ({"owned": frozenset({(b"t", 0)})}, False),
        ({"names": None}, False),
        ({"names": None, "pattern": ""}, True),
        ({"names": ("t",)}, True),
        ({"names": None, "owned": None, "rebalance_timeout_ms": -1, "epoch": 1}, True),
    ],
)
def test_8_2_the_first_request_says_all(given: dict[str, Any], is_valid: bool) -> None:
    assert (check_request(ConsumerConfig(), request(**given), 1) is None) == is_valid


def test_8_3_unknown_groups_and_members() -> None:
    g = ConsumerDriver(t=1)
    for epoch in (1, -1):
        assert g.heartbeat("a", epoch=epoch).answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    g.heartbeat("a", topics=TOPIC)
    for epoch in (1, -1):
        assert g.heartbeat("b", epoch=epoch).answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_8_3_a_group_that_the_store_lost_is_joined_again() -> None:
    g = ConsumerDriver(t=1)
    g.restart(min_generation=100)
    assert g.heartbeat("a", epoch=7).answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    g.heartbeat("a", topics=TOPIC)
    g.epochs_are(100)  # its members may have seen any below


def test_8_3_a_group_whose_epoch_has_passed_the_limit_goes_on_below_it() -> None:
    """Earlier versions went on at the seconds since 2020, which librdkafka cannot read."""
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.restart(min_generation=217_000_000)
    g.heartbeat("b", topics=TOPIC)
    assert g.consumers.group_epoch == 217_000_000
    g.commit("t", 0, new_commit(5, START_MS))

    g.restart(min_generation=40)

    for name in "ab":
        assert g.beat(name).answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert g.heartbeat(name, epoch=0, topics=TOPIC).answer.error is ErrorCode.NONE
    minutes = (START_MS // 1000 - ORIGIN_S) // 60
    assert minutes < g.consumers.group_epoch < LIMIT
    lowered = g.consumers.group_epoch
    assert list(g.stored_offsets) == [TopicPartition("t", 0)]
    g.restart(min_generation=40)
    assert g.consumers.group_epoch == lowered
    assert [g.beat(name).answer.error for name in "ab"] == [ErrorCode.NONE] * 2


def test_8_4_a_full_group() -> None:
    g = ConsumerDriver(t=2, consumer={"max_size": 2})
    g.heartbeat("a", topics=TOPIC, instance="i")
    g.heartbeat("b", topics=TOPIC)
    refused = g.heartbeat("c", topics=TOPIC)
    assert refused.answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.beat("b").answer.error is ErrorCode.NONE
    g.heartbeat("a", epoch=-2, instance="i")
    assert g.heartbeat("a2", topics=TOPIC, instance="i").answer.error is ErrorCode.NONE


def test_8_5_epochs_ahead_and_behind() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    assert g.heartbeat("a", epoch=2).answer.error is ErrorCode.FENCED_MEMBER_EPOCH
    g.heartbeat("b", topics=TOPIC)
    g.sleep(1_000)
    first = g.beat("a")  # has to give one back
    assert first.answer.epoch == 1
    assert g.beat("a").answer.epoch == 2
    # The previous epoch, with what it has: the answer was lost.
    again = g.heartbeat("a", epoch=1, owned=sorted(g.owned["a"]))
    assert (again.answer.error, again.answer.epoch) == (ErrorCode.NONE, 2)
    # Not with what it does not have, nor without a word about it.
    for owned in ([("t", 0), ("t", 1)], None):
        refused = g.heartbeat("a", epoch=1, owned=owned)
        assert refused.answer.error is ErrorCode.FENCED_MEMBER_EPOCH
    g.heartbeat("a", topics=["t", "u"], owned=sorted(g.owned["a"]))
    g.sleep(1_000)
    assert g.beat("a").answer.epoch == 3
    refused = g.heartbeat("a", epoch=1, owned=sorted(g.owned["a"]))
    assert refused.answer.error is ErrorCode.FENCED_MEMBER_EPOCH


def test_8_5_epoch_0_of_a_known_member() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    again = g.heartbeat("a", epoch=0, topics=TOPIC)
    assert again.answer.epoch == 1
    assert g.told(again) == {("t", 0), ("t", 1)}
    g.epochs_are(1)


def test_8_6_the_first_answer_has_the_partitions() -> None:
    g = ConsumerDriver(t=3)
    joined = g.heartbeat("a", topics=TOPIC)
    g.epochs_are(1)
    assert joined.answer.epoch == 1
    assert joined.answer.interval_ms == 5_000
    assert g.told(joined) == {("t", 0), ("t", 1), ("t", 2)}
    g.assert_state("Stable")


def test_8_7_what_raises_the_epoch_and_what_does_not() -> None:
    g = ConsumerDriver(t=4, u=1, consumer={"assignment_interval_ms": 0})
    g.heartbeat("a", topics=TOPIC)
    g.epochs_are(1)
    g.heartbeat("b", topics=TOPIC, instance="i")
    g.epochs_are(2)
    g.heartbeat("a", topics=["t", "u"])
    g.epochs_are(3)
    g.grow_topic("t", 6)
    g.epochs_are(4)
    g.delete_topic("u")
    g.epochs_are(5)
    g.make_topic("u", 1)
    g.epochs_are(6)
    g.make_topic("v", 1)  # of no interest
    g.heartbeat("a", rack="r", assignor="range", timeout_ms=1_000, client_id="other")
    g.heartbeat("b", epoch=-2, instance="i")
    g.heartbeat("b2", topics=TOPIC, instance="i")
    g.epochs_are(6)
    g.heartbeat("b2", epoch=-1, instance="i")
    g.epochs_are(7)
    g.sleep(46_000)  # fenced: nothing was heard of it
    assert g.consumers.group_epoch == 8
    g.assert_state("Empty")


def test_8_8_joins_share_a_target() -> None:
    g = ConsumerDriver(t=20)
    g.heartbeat("a", topics=TOPIC)
    answers = [g.heartbeat(f"m{number}", topics=TOPIC) for number in range(9)]
    for joined in answers:
        assert (joined.answer.epoch, g.told(joined)) == (1, set())
    g.epochs_are(10, target=1)
    g.assert_state("Assigning")
    g.sleep(1_000)
    g.epochs_are(10)
    g.settle("a", *(f"m{number}" for number in range(9)))
    assert all(len(owned) == 2 for owned in g.owned.values())


def test_8_9_when_an_answer_tells_the_assignment() -> None:
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    assert g.told(g.heartbeat("a")) is None
    assert g.told(g.beat("a")) is None
    full = g.heartbeat("a", topics=TOPIC, owned=[("t", 0)], timeout_ms=60_000)
    assert g.told(full) == {("t", 0), ("t", 1)}
    g.heartbeat("b", topics=TOPIC)
    g.sleep(1_000)
    assert g.told(g.heartbeat("a")) == {("t", 0)}
    empty = g.heartbeat("c", topics=[])
    assert g.told(empty) == set()
    left = g.heartbeat("c", epoch=-1).answer
    assert (left.member_id, left.epoch, left.assigned) == ("c", -1, None)


def test_8_12_the_assignor_most_members_name() -> None:
    g = ConsumerDriver(t=4, u=4, consumer={"assignment_interval_ms": 0})
    g.heartbeat("a", topics=["t", "u"])
    g.heartbeat("b", topics=["t", "u"])
    g.settle("a", "b")
    assert g.consumers.assignor == "uniform"
    g.heartbeat("a", assignor="range")
    g.heartbeat("b", assignor="range")
    assert g.consumers.assignor == "uniform"
    g.heartbeat("c", topics=["t", "u"])
    assert g.consumers.assignor == "range"
    g.settle("a", "b", "c")
    assert {len(owned) for owned in g.owned.values()} == {2, 4}


def test_8_13_a_topic_that_does_not_exist_yet() -> None:
    g = ConsumerDriver()
    assert g.told(g.heartbeat("a", topics=["later"])) == set()
    g.make_topic("later", 2)
    g.sleep(1_000)
    assert g.told(g.beat("a")) == {("later", 0), ("later", 1)}


def two_members() -> ConsumerDriver:
    """`a` has both partitions, the target gives one of them to `b`."""
    g = ConsumerDriver(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("b", topics=TOPIC)
    g.sleep(1_000)
    return g


def test_8_14_a_partition_moves() -> None:
    g = two_members()
    had = set(g.owned["a"])
    first = g.beat("a")
    kept = g.told(first)
    assert first.answer.epoch == 1
    assert kept is not None
    (moved,) = had - kept
    waits = g.beat("b")
    assert (waits.answer.epoch, g.told(waits)) == (2, None)
    g.assert_state("Reconciling")
    assert g.beat("a").answer.epoch == 2
    assert g.told(g.beat("b")) == {moved}
    g.assert_state("Stable")


def test_8_16_what_proves_that_a_partition_was_given_back() -> None:
    g = two_members()
    had = sorted(g.owned["a"])
    g.heartbeat("a", owned=had)
    assert g.heartbeat("a").answer.epoch == 1
    assert g.heartbeat("a", owned=had).answer.epoch == 1
    g.heartbeat("c", topics=TOPIC)
    g.sleep(1_000)  # another target meanwhile: it is the newest that counts
    assert g.beat("a").answer.epoch == 3


def test_8_17_unsubscribed_topics_are_lost_at_once() -> None:
    g = ConsumerDriver(t=1, u=1)
    g.heartbeat("a", topics=["t", "u"])
    answer = g.heartbeat("a", topics=["t"], owned=[("t", 0), ("u", 0)])
    assert g.told(answer) == {("t", 0)}
    assert answer.answer.epoch == 1
    g.epochs_are(2, target=1)


@pytest.mark.parametrize("restarted", [False, True])
def test_8_18_partitions_are_not_given_back_in_time(restarted: bool) -> None:
    g = two_members()
    g.heartbeat("a", timeout_ms=20_000)
    if restarted:
        g.sleep(15_000)
        g.restart()
    for _ in range(4):
        g.sleep(5_000)
        g.heartbeat("b")
        if "a" in g.consumers.members:
            g.heartbeat("a")
    assert g.heartbeat("a").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    g.settle("b")
    assert g.owned["b"] == {("t", 0), ("t", 1)}


def test_8_19_sessions() -> None:
    g = ConsumerDriver(t=1)
    g.heartbeat("a", topics=TOPIC)
    for _ in range(3):
        g.sleep(30_000)
        assert g.heartbeat("a").answer.error is ErrorCode.NONE
    g.sleep(30_000)
    assert g.groups.check_commit("g", Committer("a", None, 1), g.now) is ErrorCode.NONE
    g.sleep(15_000)
    assert g.heartbeat("a").answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_8_20_the_states() -> None:
    g = two_members()
    assert [change.state for change in g.changes] == [
        "Assigning",
        "Stable",
        "Assigning",
        "Reconciling",
    ]
    g.settle("a", "b")
    g.heartbeat("a", epoch=-1)
    g.assert_state("Reconciling")
    g.heartbeat("b", epoch=-1)
    g.assert_state("Empty")


def test_8_19_a_heartbeat_at_rest_writes_nothing() -> None:
    g = two_members()
    g.settle("a", "b")
    revision = g.revision
    for _ in range(5):
        g.sleep(5_000)
        for name in "ab":
            g.heartbeat(name)
            assert g.groups.rests("g", name, g.epochs[name], g.now) is not None
    assert g.revision == revision


def test_8_15_8_16_an_owned_list_of_an_earlier_epoch_proves_nothing() -> None:
    """It may have been sent before the member got what it lacks."""
    g = ConsumerDriver(t=1, u=1)
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("a", topics=["t", "u"])
    g.sleep(1_000)
    assert g.told(g.beat("a")) == {("t", 0), ("u", 0)}
    g.beat("a", topics=TOPIC)  # gives up u, which it still reads from
    member = g.consumers.members["a"]
    late = g.heartbeat("a", epoch=1, owned=[("t", 0)])
    assert late.answer.error is ErrorCode.NONE
    assert member.state == "unrevoked"
    assert g.consumers.holders[(g.topics["u"].topic_id, 0)] is member
    g.heartbeat("a", owned=[("t", 0)])
    assert not member.revoking
