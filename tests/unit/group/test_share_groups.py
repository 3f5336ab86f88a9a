"""Share groups: heartbeats, targets, what other requests get, restarts (9.1 to 9.3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerLimits, ShareConfig
from moldau.broker.group.effects import HeartbeatAnswer, JoinAnswer, LeaveAnswer, SyncAnswer
from moldau.broker.group.events import (
    ConsumerHeartbeat,
    Join,
    Leave,
    LeavingMember,
    ShareHeartbeat,
    Sync,
)
from moldau.broker.group.modern.share_group import ShareGroup
from moldau.broker.group.modern.share_heartbeat import check_request
from moldau.broker.group.offsets import Committer
from moldau.broker.group.record import ConsumerRecord, decode
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import GroupListing
from tests.support.drivers.group_driver import GroupDriver
from tests.support.drivers.group_world import Call

Partition = tuple[str, int]
NONE = ErrorCode.NONE


class ShareDriver(GroupDriver):
    """Members by name remember their epochs and partitions."""

    def __init__(self, *, max_size: int = 200, interval_ms: int = 1_000, **topics: int) -> None:
        limits = ConsumerLimits(assignment_interval_ms=interval_ms)
        super().__init__("g", share=ShareConfig(limits=limits, max_size=max_size))
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, set[Partition]] = {}
        for name, partitions in topics.items():
            self.make_topic(name, partitions)

    def beat(
        self, name: str, epoch: int | None = None, topics: Iterable[str] | None = None, **more: Any
    ) -> HeartbeatAnswer:
        call: Call[HeartbeatAnswer] = self.call(f"heartbeat of {name}")
        shown = self.epochs.get(name, 0) if epoch is None else epoch
        names = None if topics is None else tuple(topics)
        self.send(ShareHeartbeat(call, name, shown, name, "127.0.0.1", names=names, **more))
        answer = call.answer
        if answer.error is NONE:
            self.epochs[name] = answer.epoch
            if answer.assigned is not None:
                self.owned[name] = self.partitions(answer.assigned)
            if answer.epoch < 0:
                del self.epochs[name], self.owned[name]
        return answer

    def join_all(self, *names: str, topics: Iterable[str] = ("t",)) -> None:
        for name in names:
            assert self.beat(name, 0, topics).error is NONE

    def settle(self) -> None:
        self.sleep(2_000)
        for name in list(self.epochs):
            assert self.beat(name).error is NONE

    def partitions(self, places: Iterable[tuple[bytes, int]]) -> set[Partition]:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        return {(names.get(topic_id, "?"), number) for topic_id, number in places}

    def share_members(self) -> dict[str, frozenset[str]]:
        """The topics of each member."""
        group = self.groups.by_id.get("g")
        found = group.members if isinstance(group, ShareGroup) else {}
        return {name: member.names for name, member in found.items()}

    @property
    def share(self) -> ShareGroup:
        group = self.groups.by_id["g"]
        assert isinstance(group, ShareGroup)
        return group


def request(**fields: Any) -> ShareHeartbeat:
    given = {"call": 1, "member_id": "a", "epoch": 1, "client_id": "", "client_host": "", **fields}
    return ShareHeartbeat(**given)


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({}, True),
        ({"member_id": ""}, False),
        ({"member_id": "m" * 36}, True),
        ({"member_id": "m" * 37}, False),
        ({"rack_id": ""}, False),
        ({"rack_id": "r"}, True),
        ({"epoch": -1}, True),
        ({"epoch": -2}, False),
        ({"epoch": 0}, False),
        ({"epoch": 0, "names": ()}, False),
        ({"epoch": 0, "names": ("t",)}, True),
    ],
)
def test_9_1_what_a_request_needs(fields: dict[str, Any], is_valid: bool) -> None:
    found = check_request(request(**fields))
    assert (found is None) == is_valid
    assert found is None or found.error is ErrorCode.INVALID_REQUEST


def test_9_1_unknown_groups_and_members() -> None:
    g = ShareDriver(t=2)
    for epoch in (-1, 1, 7):
        assert g.beat("a", epoch).error is ErrorCode.GROUP_ID_NOT_FOUND
    g.join_all("a")
    for epoch in (-1, 1):
        assert g.beat("b", epoch).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_9_1_epochs_ahead_and_behind() -> None:
    g = ShareDriver(t=2)
    g.join_all("a")
    first = g.epochs["a"]
    g.sleep(2_000)
    g.join_all("b")
    g.sleep(2_000)
    g.settle()
    assert g.epochs["a"] > first
    assert g.beat("a", first).error is NONE  # its answer was lost
    now = g.epochs["a"]
    for epoch in (now + 1, 99):
        answer = g.beat("a", epoch)
        assert answer.error is ErrorCode.FENCED_MEMBER_EPOCH
    g.sleep(2_000)
    g.join_all("c")
    g.settle()
    assert g.beat("a", first).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_9_1_epoch_0_of_a_known_member() -> None:
    g = ShareDriver(t=2)
    g.join_all("a")
    epoch, mine = g.epochs["a"], g.owned["a"]
    answer = g.beat("a", 0, ("t",))
    assert (answer.epoch, g.partitions(answer.assigned or ())) == (epoch, mine)
    assert mine == {("t", 0), ("t", 1)}
    assert g.share.group_epoch == epoch


def test_9_1_a_full_group() -> None:
    g = ShareDriver(max_size=2, t=2)
    g.join_all("a", "b")
    assert g.beat("c", 0, ("t",)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.beat("c", 3).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert g.beat("a").error is NONE
    g.beat("b", -1)
    assert g.beat("c", 0, ("t",)).error is NONE


def test_9_1_groups_of_other_kinds_are_none() -> None:
    for kind in ("classic", "consumer"):
        g = ShareDriver(t=1)
        if kind == "classic":
            g.join("x")
            g.sleep(10_000)
        else:
            g.send(
                ConsumerHeartbeat(
                    g.call("x"), "x", 0, "", "", rebalance_timeout_ms=1, names=("t",),
                    owned=frozenset(),
                )
            )  # fmt: skip
        for epoch in (0, 1, -1):
            answer = g.beat("a", epoch, ("t",))
            assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
            assert answer.message == "Group g is not a share group."


def test_9_2_the_first_answer_has_the_partitions_and_later_ones_what_changed() -> None:
    g = ShareDriver(t=4)
    assert g.beat("a", 0, ("t",)).assigned is not None
    assert len(g.owned["a"]) == 4
    assert g.beat("a").assigned is None
    assert g.beat("a", topics=("t",)).assigned is not None
    g.sleep(2_000)
    g.join_all("b")
    answer = g.beat("a")
    assert answer.epoch == g.share.target_epoch
    assert answer.assigned is not None
    assert {len(mine) for mine in g.owned.values()} == {2}
    assert g.owned["a"].isdisjoint(g.owned["b"])


def test_9_2_topics_that_come_grow_and_go() -> None:
    g = ShareDriver()
    g.join_all("a", "b")
    assert g.owned == {"a": set(), "b": set()}
    g.make_topic("t", 2)
    g.settle()
    assert sorted(len(mine) for mine in g.owned.values()) == [1, 1]
    g.grow_topic("t", 4)
    g.settle()
    assert sorted(len(mine) for mine in g.owned.values()) == [2, 2]
    g.delete_topic("t")
    g.settle()
    assert g.owned == {"a": set(), "b": set()}


def test_9_2_who_unsubscribes_loses_the_partitions_at_once() -> None:
    g = ShareDriver(interval_ms=60_000, t=2, u=2)
    g.join_all("a", topics=("t", "u"))
    assert len(g.owned["a"]) == 4
    g.hold_jobs = True
    g.sleep(100)
    g.beat("a", topics=("u",))
    assert g.owned["a"] == {("u", 0), ("u", 1)}


def test_9_3_what_other_requests_get() -> None:
    g = ShareDriver(t=1)
    g.join_all("a")
    for is_empty in (False, True):
        if is_empty:
            g.beat("a", -1)
            g.assert_state("Empty")
        join: Call[JoinAnswer] = g.call("join")
        protocols = (("range", b"m"),)
        g.send(Join(join, "", None, "c", "h", 10_000, 60_000, "consumer", protocols))
        assert join.answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        sync: Call[SyncAnswer] = g.call("sync")
        g.send(Sync(sync, "x", None, 1))
        assert sync.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        leave: Call[LeaveAnswer] = g.call("leave")
        g.send(Leave(leave, (LeavingMember("x"),)))
        assert leave.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        beat: Call[HeartbeatAnswer] = g.call("beat")
        g.send(
            ConsumerHeartbeat(
                beat, "x", 0, "", "", rebalance_timeout_ms=1, names=("t",), owned=frozenset()
            )
        )
        assert beat.answer.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert g.groups.heartbeat("g", "a", None, 1, g.now) is ErrorCode.UNKNOWN_MEMBER_ID
        commit = g.groups.check_commit("g", Committer("", None, -1), g.now)
        assert commit is ErrorCode.GROUP_ID_NOT_FOUND
        assert g.groups.check_fetch("g", None, -1) is NONE
        assert g.groups.describe("g").state is GroupState.DEAD
        assert g.groups.describe_consumers("g") is None
        state = GroupState.EMPTY if is_empty else GroupState.STABLE
        assert g.share.listing() == GroupListing("g", "share", state, "share")


def test_9_3_an_empty_group_stays_until_it_is_deleted() -> None:
    g = ShareDriver(t=1)
    g.join_all("a")
    assert g.delete().answer.error is ErrorCode.NON_EMPTY_GROUP
    g.beat("a", -1)
    g.sleep(100 * 24 * 3_600_000)
    assert not g.groups.is_forgettable("g")
    assert g.groups.expired_offsets("g", g.now) == []
    g.restart()
    g.assert_state("Empty")
    assert g.delete().answer.error is NONE
    assert g.stored is None
    assert "g" not in g.groups.by_id


def test_sessions_end_and_heartbeats_renew_them() -> None:
    g = ShareDriver(t=2)
    g.join_all("a", "b")
    for _ in range(3):
        g.sleep(30_000)
        assert g.beat("a").error is NONE
    assert g.beat("b", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(g.owned["a"]) == 2
    assert [change.state for change in g.changes] == ["Stable"]


def test_a_restart_changes_nothing() -> None:
    g = ShareDriver(t=5)
    g.join_all("a", "b", "c")
    g.settle()
    g.settle()
    epochs, owned, before = dict(g.epochs), dict(g.owned), g.share.describe_share()
    assert g.stored is not None
    record = decode(g.stored)
    assert isinstance(record, ConsumerRecord)
    assert (record.kind, record.format) == ("share", 3)
    g.restart()
    assert g.share.describe_share() == before
    g.settle()
    assert (g.epochs, g.owned) == (epochs, owned)
    revision = g.revision
    for _ in range(5):
        g.settle()
    assert g.revision == revision


def test_a_topic_that_grew_during_a_restart_raises_the_epoch_once() -> None:
    g = ShareDriver(t=2)
    g.join_all("a")
    g.settle()
    epoch = g.share.group_epoch
    g.topics["t"] = g.topics["t"]._replace(partitions=3)
    g.restart()
    assert g.share.group_epoch == epoch + 1
    g.settle()
    assert len(g.owned["a"]) == 3


def test_what_is_told_is_stored() -> None:
    g = ShareDriver(t=2)
    g.hold_writes = True
    call: Call[HeartbeatAnswer] = g.call("join")
    g.send(ShareHeartbeat(call, "a", 0, "", "", names=("t",)))
    assert call.is_parked
    g.write_done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert call.answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    g.hold_writes = False
    g.sleep(10_000)
    assert g.beat("a", 0, ("t",)).error is NONE
    assert len(g.owned["a"]) == 2


@pytest.mark.parametrize("seed", range(30))
def test_9_2_random_members(seed: int) -> None:
    """Whatever members do, at rest every partition has a member and every member what it can."""
    rng = random.Random(seed)
    g = ShareDriver(t=rng.randint(1, 6), u=rng.randint(0, 4))
    names = [f"m{number}" for number in range(8)]
    for _ in range(120):
        name = rng.choice(names)
        match rng.randrange(9):
            case 0:
                g.beat(name, -1)
            case 1 | 2 | 3:
                topics = rng.choice((("t",), ("t", "u"), ("u",), ("t",)))
                g.beat(name, 0, topics)
            case 4 | 5:
                g.beat(name)
            case 6:
                g.sleep(rng.choice((100, 5_000, 50_000)))
            case 7:
                g.grow_topic("t", g.topics["t"].partitions + 1)
            case _:
                g.restart()
        for known in [known for known in g.epochs if known not in g.share_members()]:
            del g.epochs[known], g.owned[known]
    for _ in range(3):
        g.settle()
    has = Counter(place for mine in g.owned.values() for place in mine)
    for name, member in g.share_members().items():
        could = {topic for topic in member if g.topics[topic].partitions}
        assert {topic for topic, _ in g.owned[name]} <= could
        assert bool(g.owned[name]) == bool(could)
    wanted = {topic for member in g.share_members().values() for topic in member}
    for topic in wanted:
        for number in range(g.topics[topic].partitions):
            assert has[topic, number] > 0
