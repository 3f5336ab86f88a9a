"""Classic members inside a group of the consumer protocol, and conversion both ways (8.29-8.32)."""

import struct
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group import Group
from moldau.broker.group.effects import JoinAnswer, SyncAnswer
from moldau.broker.group.events import LeavingMember
from moldau.broker.group.group_base import LIMIT, TimerKind
from moldau.broker.group.offsets import new_commit
from moldau.broker.group.record import encode
from moldau.broker.wire.consumer_protocol import encode_assignment, parse_assignment
from tests.support.drivers.consumer_driver import ConsumerDriver, Partition
from tests.support.drivers.group_world import Call

TOPIC = ["t"]


def subscription(
    topics: Iterable[str] = ("t",), owned: Iterable[Partition] = (), version: int = 1
) -> bytes:
    names = list(topics)
    data = struct.pack(">hi", version, len(names))
    for name in names:
        data += struct.pack(f">h{len(name)}s", len(name), name.encode())
    data += struct.pack(">i", -1)
    if version >= 1:
        by_topic: dict[str, list[int]] = {}
        for name, number in owned:
            by_topic.setdefault(name, []).append(number)
        data += struct.pack(">i", len(by_topic))
        for name, numbers in by_topic.items():
            data += struct.pack(f">h{len(name)}si", len(name), name.encode(), len(numbers))
            data += struct.pack(f">{len(numbers)}i", *numbers)
    return data


class Mixed(ConsumerDriver):
    """A group with members of both protocols."""

    def classic_join(
        self, name: str, owned: Iterable[Partition] = (), **options: Any
    ) -> Call[JoinAnswer]:
        return self.join(name, protocols=(("range", subscription(owned=owned)),), **options)

    def classic_partitions(self, call: Call[SyncAnswer]) -> set[Partition]:
        assert call.answer.error is ErrorCode.NONE
        found = parse_assignment(call.answer.assignment)
        assert found is not None
        return set(found.partitions)

    def form_classic(self, *names: str, strategy: str = "range", user_data: bytes = b"") -> None:
        """Members with a partition each of `t`, in their order."""
        for name in names:
            self.join(name, protocols=((strategy, subscription()),))
        self.sleep(3_000)
        while self.group.state == "PreparingRebalance":
            self.sleep(3_000)
        given = {
            name: encode_assignment(1, [("t", n)])[:-4]
            + struct.pack(">i", len(user_data))
            + user_data
            for n, name in enumerate(names)
        }
        leader = self.leader()
        for name in [*(one for one in names if one != leader), leader]:
            self.sync(name, given if name == leader else None)
        self.assert_state("Stable")

    def classic_beat(self, name: str) -> ErrorCode:
        self.learn()
        return self.groups.heartbeat(
            "g", self.id_of(name), None, self.generations.get(name, -1), self.now
        )

    def rejoin(self, name: str, owned: Iterable[Partition] = ()) -> set[Partition]:
        """Join again, as asked to, and sync."""
        joined = self.classic_join(name, owned)
        assert joined.answer.error is ErrorCode.NONE
        return self.classic_partitions(self.sync(name))

    def id_of(self, name: str) -> str:
        self.learn()
        return self.ids.get(name) or super().id_of(name)


def upgraded() -> Mixed:
    """Two classic members, each with a partition of three, and one of the other protocol."""
    g = Mixed(t=3)
    g.form_classic("x", "y")
    g.commit("t", 0, new_commit(7, g.now))
    joined = g.heartbeat("a", topics=TOPIC)
    assert joined.answer.error is ErrorCode.NONE
    return g


def test_8_29_the_first_such_member_converts_the_group() -> None:
    g = upgraded()
    g.epochs_are(2)
    view = g.groups.describe_consumers("g")
    assert view is not None
    kinds = {member.client_id: member.is_classic for member in view.members}
    assert kinds == {"x": True, "y": True, "a": False}
    assert {member.epoch for member in view.members if member.is_classic} == {1}
    assert g.owned["a"] == {("t", 2)}
    committed = g.offsets.get("t", 0)
    assert committed is not None
    assert committed.offset == 7
    g.restart()
    assert g.groups.describe_consumers("g") == view


def test_8_29_parked_requests_are_told_to_join_again() -> None:
    g = Mixed(t=2)
    joining = g.classic_join("x")
    g.heartbeat("a", topics=TOPIC)
    assert joining.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    g = Mixed(t=2)
    g.classic_join("x")
    g.classic_join("y")
    g.sleep(6_000)
    follower = next(name for name in "xy" if name != g.leader())
    syncing = g.sync(follower)
    assert syncing.is_parked
    g.heartbeat("a", topics=TOPIC)
    assert syncing.answer.error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("why", ["policy", "size", "protocol type", "user data", "epoch"])
def test_8_29_refused_without_the_group_noticing(why: str) -> None:
    config = {"policy": {"upgrades": False}, "size": {"max_size": 1}}.get(why, {})
    g = Mixed(t=3, consumer=config)
    if why == "protocol type":
        g.form("x", "y", options={name: {"protocol_type": "connect"} for name in "xy"})
    elif why == "user data":
        g.form_classic("x", "y", strategy="own", user_data=b"notes")
    else:
        g.form_classic("x", "y")
    revision = g.revision
    refused = g.heartbeat("a", topics=TOPIC, epoch=1 if why == "epoch" else 0)
    assert refused.answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    g.assert_state("Stable", 1)
    assert g.revision == revision
    assert isinstance(g.groups.by_id["g"], Group)


def test_8_29_notes_of_a_sticky_assignor_are_no_obstacle() -> None:
    g = Mixed(t=2)
    g.form_classic("x", "y", strategy="cooperative-sticky", user_data=b"notes")
    assert g.heartbeat("a", topics=TOPIC).answer.error is ErrorCode.NONE


def test_8_30_classic_members_go_along() -> None:
    g = upgraded()
    for name in "xy":
        assert g.classic_beat(name) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = g.classic_join("x", [("t", 0)]).answer
    assert (joined.error, joined.generation_id) == (ErrorCode.NONE, 2)
    assert (joined.leader, joined.members, joined.protocol_name) == ("", (), "range")
    assert g.classic_partitions(g.sync("x")) == {("t", 0)}
    assert g.classic_beat("x") is ErrorCode.NONE
    assert g.sync("x", generation=1).answer.error is ErrorCode.ILLEGAL_GENERATION
    wrong = g.sync("x", protocol_name="sticky").answer.error
    assert wrong is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_8_30_a_classic_member_has_to_give_back() -> None:
    g = Mixed(t=2)
    g.form_classic("x")
    given = g.classic_partitions(g.sync("x"))
    assert given == {("t", 0)}
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("b", topics=TOPIC)
    g.sleep(1_000)  # three members, two partitions: one has none
    for _ in range(4):
        g.sleep(1_000)
        if g.classic_beat("x") is ErrorCode.REBALANCE_IN_PROGRESS:
            given = g.rejoin("x")  # eager: it gives up everything first
        g.beat("a")
        g.beat("b")
    g.assert_state("Stable")
    read = [*given, *g.owned["a"], *g.owned["b"]]
    assert sorted(read) == [("t", 0), ("t", 1)]


def test_8_30_a_cooperative_member_learns_what_to_give_back() -> None:
    g = Mixed(t=2)
    g.form_classic("x")
    g.heartbeat("a", topics=TOPIC)
    g.sleep(1_000)
    g.beat("a")
    given = {("t", 0)}
    for _ in range(3):
        g.grow_topic("t", g.topics["t"].partitions + 1)
        g.heartbeat(f"b{g.now}", topics=TOPIC)
        g.sleep(1_000)
        for _ in range(4):
            if g.classic_beat("x") is ErrorCode.REBALANCE_IN_PROGRESS:
                given = g.rejoin("x", given)
            g.sleep(1_000)
            for name in list(g.epochs):
                g.beat(name)
    g.assert_state("Stable")
    read = sorted([*given, *(one for owned in g.owned.values() for one in owned)])
    assert read == [("t", number) for number in range(5)]


def test_8_30_new_classic_members_get_an_id_first() -> None:
    g = upgraded()
    first = g.join_once("z", protocols=(("range", subscription()),))
    assert first.answer.error is ErrorCode.MEMBER_ID_REQUIRED
    second = g.join_once("z", protocols=(("range", subscription()),))
    assert second.answer.error is ErrorCode.NONE
    assert len(g.consumers.members) == 4


@pytest.mark.parametrize("what", ["join", "sync"])
def test_8_30_who_does_not_come_in_time_is_removed(what: str) -> None:
    g = upgraded()
    if what == "sync":
        g.classic_join("x", [("t", 0)])
    member_id = g.id_of("x")
    for _ in range(14):
        g.sleep(5_000)
        g.beat("a")
        for name in "xy":
            if g.id_of(name) in g.consumers.members:
                answer = g.classic_beat(name)
                if name == "y" and answer is ErrorCode.REBALANCE_IN_PROGRESS:
                    g.rejoin("y", [("t", 1)])
    assert member_id not in g.consumers.members
    assert g.id_of("y") in g.consumers.members


def test_8_31_policy_disabled() -> None:
    g = Mixed(t=2, consumer={"upgrades": False, "downgrades": False})
    g.heartbeat("a", topics=TOPIC)
    refused = g.join_once("x", protocols=(("range", subscription()),)).answer.error
    assert refused is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("how", ["leaves", "is fenced"])
def test_8_32_the_last_one_is_gone(how: str) -> None:
    g = upgraded()
    for name, number in (("x", 0), ("y", 1)):
        g.rejoin(name, [("t", number)])
    if how == "leaves":
        left = g.heartbeat("a", epoch=-1).answer
        assert (left.error, left.epoch) == (ErrorCode.NONE, -1)
    else:
        for _ in range(9):
            g.sleep(5_000)
            g.classic_beat("x")
            g.classic_beat("y")
    g.assert_state("PreparingRebalance", 2)
    assert g.record.members  # stored as what it is now
    assert not g.stored_members
    for name in "xy":
        assert g.classic_beat(name) is ErrorCode.REBALANCE_IN_PROGRESS
    g.restart()
    g.assert_state("Stable", 2)


def test_8_32_the_instance_of_the_last_one_returns_classic() -> None:
    g = Mixed(t=3)
    g.form_classic("x")
    g.heartbeat("a", topics=TOPIC, instance="i")
    g.rejoin("x", [("t", 0)])
    back = g.join_once("a2", instance="i", protocols=(("range", subscription()),))
    assert back.answer.error in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    g.assert_state("PreparingRebalance")
    assert len(g.group.roster) == 2


def test_8_32_forbidden_by_policy_it_stays() -> None:
    g = Mixed(t=3, consumer={"downgrades": False})
    g.form_classic("x", "y")
    g.heartbeat("a", topics=TOPIC)
    g.heartbeat("a", epoch=-1)
    assert len(g.consumers.classic_members) == 2


def test_8_32_empty_groups_convert_both_ways_under_any_policy() -> None:
    g = Mixed(t=2, consumer={"upgrades": False, "downgrades": False})
    g.commit("t", 0, new_commit(3, g.now))
    g.form_classic("x")
    g.leave("x")
    g.assert_state("Empty")
    assert g.heartbeat("a", topics=TOPIC).answer.epoch == 1
    assert g.consumers.members
    g.heartbeat("a", epoch=-1)
    g.classic_join("x", member_id="")
    assert isinstance(g.groups.by_id["g"], Group)
    committed = g.offsets.get("t", 0)
    assert committed is not None
    assert committed.offset == 3


def test_8_32_an_administrator_removes_members_of_either_protocol() -> None:
    """Members are named by instance or id, as in Apache Kafka 4.3; the next heartbeat says so."""
    g = Mixed(t=4)
    g.heartbeat("a", topics=TOPIC, instance="i")
    for name in "bcd":
        g.heartbeat(name, topics=TOPIC)
    g.heartbeat("e", topics=TOPIC, instance="k")
    before = g.consumers.group_epoch
    answer = g.leave_members(
        LeavingMember("", "i"),
        LeavingMember("b"),
        LeavingMember("b"),  # once more
        LeavingMember("c", "nobody"),
        LeavingMember("other", "k"),
        LeavingMember("nobody"),
    )
    assert [one.error for one in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(g.consumers.members) == set(g.stored_members) == {"c", "d", "e"}
    assert g.consumers.group_epoch == before + 1
    assert g.beat("b").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert g.beat("a", instance="i").answer.error is ErrorCode.UNKNOWN_MEMBER_ID

    g.leave_members(LeavingMember("c"), LeavingMember("d"), LeavingMember("e"))

    g.assert_state("Empty")
    assert g.delete().answer.error is ErrorCode.NONE


def test_8_32_with_the_last_consumer_removed_the_group_is_classic_again() -> None:
    g = upgraded()
    for name, number in (("x", 0), ("y", 1)):
        g.rejoin(name, [("t", number)])
    answer = g.leave_members(LeavingMember("a"))
    assert [one.error for one in answer.members] == [ErrorCode.NONE]
    g.assert_state("PreparingRebalance", 2)


def test_8_30_timers_go_with_their_members() -> None:
    g = upgraded()
    for name, number in (("x", 0), ("y", 1)):
        g.rejoin(name, [("t", number)])
    kinds = {key.kind for key in g.timers}
    assert kinds == {TimerKind.SESSION}


def test_8_33_a_classic_group_that_is_being_deleted_answers_such_members() -> None:
    g = Mixed(t=2)
    g.classic_join("x")
    g.sleep(6_000)
    g.leave("x")
    g.hold_writes = True
    deleting = g.delete()
    assert deleting.is_parked
    joining = g.heartbeat("a", topics=TOPIC)
    assert joining.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_8_32_who_leaves_while_a_classic_member_joins_is_answered() -> None:
    """The group is Empty, and becomes classic, before the leave is stored."""
    g = Mixed(t=2)
    g.heartbeat("a", topics=TOPIC)
    g.hold_writes = True
    leaving = g.heartbeat("a", epoch=-1)
    assert leaving.is_parked
    joining = g.classic_join("x")
    assert (leaving.answer.error, leaving.answer.epoch) == (ErrorCode.NONE, -1)
    g.hold_writes = False
    g.write_done()
    g.sleep(6_000)
    assert joining.answer.error is ErrorCode.NONE


def test_8_29_a_generation_above_the_limit_is_not_taken_over() -> None:
    """Epochs are compared by size: the classic members join again, at a lower one."""
    g = Mixed(t=2)
    g.form_classic("a", "b")
    g.stored = encode(msgspec.structs.replace(g.record, generation_id=217_000_000))
    g.restart(min_generation=3_600_000)

    answer = g.heartbeat("c", topics=TOPIC).answer

    assert answer.error is ErrorCode.NONE
    assert 3_600_000 <= answer.epoch < LIMIT
    assert g.groups.heartbeat("g", g.id_of("a"), None, 217_000_000, g.now) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert g.classic_join("a", member_id="").answer.generation_id < LIMIT
