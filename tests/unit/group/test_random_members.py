"""Random members against the invariants of a group, in virtual time.

Members join, sync, heartbeat, crash, leave, repeat themselves, come back from the dead with old
generations; the clock jumps, writes fail or succeed in secret, the groups restarts. After each
step: at most one member of a generation has a partition, no fenced member can commit,
generations only grow, every wait has a timer that ends it. At the end the members cooperate:
everything parked is answered, and the group is Stable, or Empty if no member is left.
"""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group import Group
from moldau.broker.group.classic.group_data import SaveReplacement
from moldau.broker.group.events import LeavingMember, Protocols
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.states import GroupState
from moldau.broker.machine import TimerFired, TimerKey
from tests.support.drivers.group_driver import GroupDriver
from tests.unit.group.group_members import PARTITIONS, Consumer, Witness

PROTOCOLS: list[Protocols] = [
    (("range", b"t"), ("sticky", b"t")),
    (("range", b"t,u"), ("sticky", b"t,u")),
    (("sticky", b"t"), ("range", b"t")),
]
FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE
CONSUMERS = range(5)
INSTANCES = {0: "h", 2: "i", 4: "j"}
consumers = st.sampled_from(CONSUMERS)


class RandomMembers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.g = GroupDriver(new_member_join_timeout_ms=40_000, max_size=4)
        self.g.hold_writes = True
        self.witness = Witness(self.g)
        self.consumers = [
            Consumer(self.g, self.witness, f"c{n}", INSTANCES.get(n), protocols=PROTOCOLS[0])
            for n in CONSUMERS
        ]
        self.ghosts: list[Consumer] = []
        self.generation = 0
        self.identity = ""

    @initialize(size=st.integers(0, len(CONSUMERS)))
    def form(self, size: int) -> None:
        self._live(range(size), seconds=12)
        if size:
            self.g.assert_state("Stable")

    # Members

    @rule(
        which=consumers,
        what=st.sampled_from(
            ["join", "sync", "leave", "crash", "restart", "lose connection", "old generation"]
        ),
        protocols=st.sampled_from(PROTOCOLS),
        version=st.sampled_from([3, 8, 9]),
    )
    def one_misbehaves(self, which: int, what: str, protocols: Protocols, version: int) -> None:
        """Whether it makes sense or not, and again if it has done so before."""
        consumer = self.consumers[which]
        match what:
            case "join":
                consumer.protocols = protocols
                consumer.version = max(version, 5) if consumer.instance else version
                consumer.send_join()
            case "sync":
                consumer.send_sync()
            case "leave":
                consumer.send_leave()
            case "crash" | "restart":  # a new process; the old one is only asleep
                if consumer.member_id:
                    self.ghosts.append(consumer.ghost())
                consumer.is_dead = False
                consumer.forget()
                if what == "restart":
                    consumer.send_join()
            case "old generation":
                consumer.send_old_generation()
            case _:
                consumer.lose_calls()

    @rule(who=st.lists(consumers, min_size=1, max_size=10))
    def some_act(self, who: list[int]) -> None:
        """They behave, but the store does not answer and time stands still."""
        for which in who:
            self.consumers[which].cooperate()
            self._check()

    @rule(who=st.sets(consumers, min_size=1), seconds=st.integers(1, 12), answers=st.booleans())
    def some_live(self, who: set[int], seconds: int, answers: bool) -> None:
        """They behave for a while; the others are silent."""
        self._live(sorted(who), seconds, answers)

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data(), what=st.sampled_from(["join", "sync", "heartbeat", "leave", "act"]))
    def ghost_wakes(self, data: st.DataObject, what: str) -> None:
        ghost = data.draw(st.sampled_from(self.ghosts))
        match what:
            case "join":
                ghost.send_join()
            case "sync":
                ghost.send_sync()
            case "heartbeat":
                ghost.send_heartbeat()
            case "leave":
                ghost.send_leave()
            case _:
                ghost.cooperate()

    @rule(instance=st.sampled_from(sorted(INSTANCES.values())))
    def administrator_removes(self, instance: str) -> None:
        self.g.leave_members(LeavingMember("", instance))

    # Time, store, groups

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 6_000, 10_000, 20_000, 45_000]))
    def sleep(self, ms: int) -> None:
        self.g.sleep(ms)

    @rule(ms=st.sampled_from([500, 5_000, 60_000, 3_600_000]))
    def clock_jumps(self, ms: int) -> None:
        self.g.jump(ms)

    @rule(kind=st.sampled_from(TimerKind), which=consumers)
    def stray_timer(self, kind: TimerKind, which: int) -> None:
        key = TimerKey("g", kind, self.consumers[which].member_id)
        if key not in self.g.timers:
            self.g.send(TimerFired(key))

    @precondition(lambda self: self.g.write is not None)
    @rule(fault=st.sampled_from([ErrorCode.NONE, FAILED]), stored=st.booleans())
    def write_ends(self, fault: ErrorCode, stored: bool) -> None:
        self.g.write_done(fault, stored=stored or fault is ErrorCode.NONE)

    @rule(what=st.sampled_from(["killed", "killed after the write", "moved", "deleted"]))
    def coordinator_is(self, what: str) -> None:
        if what == "deleted":
            self.g.delete()
            return
        if what == "killed after the write" and self.g.write is not None:
            self.g.stored_write(self.g.write)
        if what == "moved":
            self.g.give_up()
            assert not self.g.parked
            assert not self.g.timers
            self._hear_all()
        self.g.restart()
        self._coordinator_is_new()

    def _live(self, who: Iterable[int], seconds: int, store_answers: bool = True) -> None:
        for _ in range(seconds):
            for which in who:
                self.consumers[which].cooperate()
                while store_answers and self.g.write is not None:
                    self.g.write_done()
            self._check()
            self.g.sleep(1_000)
            self._check()

    def _hear_all(self) -> None:
        for consumer in self.consumers + self.ghosts:
            consumer.hear()

    def _coordinator_is_new(self) -> None:
        for consumer in self.consumers + self.ghosts:
            consumer.lose_calls()
        self.generation = 0

    # Invariants

    def _check(self) -> None:
        """Not only between the rules, but at each step of those that take many."""
        self.deliveries_are_safe()
        self.generations_grow()
        self.every_wait_ends()
        self.counts_are_right()

    @invariant()
    def deliveries_are_safe(self) -> None:
        self._hear_all()
        self.witness.check()

    @invariant()
    def generations_grow(self) -> None:
        group = self.g.groups.by_id.get("g")
        if group is None:
            return
        if group.identity != self.identity:
            self.identity, self.generation = group.identity, 0
        assert group.generation_id >= self.generation
        self.generation = group.generation_id
        delivered = [d.generation for d in self.witness.deliveries if d.identity == group.identity]
        assert group.generation_id >= max(delivered, default=0)

    @invariant()
    def every_wait_ends(self) -> None:
        group = self.g.groups.by_id.get("g")
        if group is None:
            assert not self.g.timers
            return
        assert isinstance(group, Group)
        kinds = {key.kind for key in self.g.timers}
        roster = group.roster
        assert self.g.timers.keys() == group._armed.keys()
        assert group.is_writing == (self.g.write is not None)
        for member in roster.by_id.values():
            watched = TimerKey("g", TimerKind.SESSION, member.member_id) in self.g.timers
            assert watched == (member.session_timer_ms is not None)
            if member.is_new:
                assert TimerKey("g", TimerKind.NEW_MEMBER, member.member_id) in self.g.timers
                assert member.join_call is not None
            elif not member.is_parked:
                assert watched, f"no timer watches {member.member_id}"
        for member_id in roster.pending:
            assert TimerKey("g", TimerKind.PENDING_MEMBER, member_id) in self.g.timers
        members = list(roster.by_id.values())
        parked_joins = [member for member in members if member.join_call is not None]
        parked_syncs = [member for member in members if member.sync_call is not None]
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                assert not members
            case GroupState.PREPARING_REBALANCE:
                assert kinds & {TimerKind.INITIAL_DELAY, TimerKind.JOIN}
                assert not parked_syncs
            case GroupState.COMPLETING_REBALANCE:
                assert TimerKind.SYNC in kinds or (group.assignments is not None and members)
                assert not parked_joins
            case GroupState.STABLE:
                assert not parked_syncs
                being_stored = {
                    reason.new.member_id
                    for reason in (group.write or []) + group.waiting
                    if isinstance(reason, SaveReplacement)
                }
                assert {member.member_id for member in parked_joins} <= being_stored

    @invariant()
    def counts_are_right(self) -> None:
        group = self.g.groups.by_id.get("g")
        if group is None:
            return
        assert isinstance(group, Group)
        roster = group.roster
        members = roster.by_id.values()
        supported = Counter(name for member in members for name, _ in member.protocols)
        assert dict(roster._support) == dict(supported)
        assert roster._joining == sum(member.join_call is not None for member in members)
        assert roster.by_instance == {m.instance_id: m for m in members if m.instance_id}
        assert len(roster) <= group.config.max_size
        assert (roster.leader in roster.by_id) if members else roster.leader is None
        assert not roster.pending & roster.by_id.keys()
        assert group.awaited_syncs <= roster.by_id.keys()

    def teardown(self) -> None:
        """Everybody behaves from now on: the group must come to rest."""
        self._live(CONSUMERS, seconds=120)
        assert not self.g.parked
        alive = [consumer for consumer in self.consumers if not consumer.is_dead]
        members = self.g.groups.describe("g").members
        if alive:
            self.g.assert_state("Stable")
            inside = [consumer for consumer in alive if consumer.is_stable]
            assert len(inside) == min(len(alive), self.g.config.max_size)
            assert {consumer.member_id for consumer in inside} == {m.member_id for m in members}
            assigned = sorted(p for member in members for p in member.assignment)
            assert assigned == list(PARTITIONS)
            stored = {member.member_id: member.assignment for member in self.g.record.members}
            assert stored == {member.member_id: member.assignment for member in members}
            assert self.g.record.generation_id == self.g.group.generation_id
        else:
            assert self.g.groups.describe("g").state in ("Empty", "Dead")


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RandomMembers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_members() -> None:
    run(examples=100, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_members_for_long() -> None:
    run(examples=2_000, steps=80)
