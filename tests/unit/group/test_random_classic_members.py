"""Random members of both protocols in one group (8.15, 8.30), in virtual time.

As `test_random_consumers`, with classic members beside: eager and cooperative ones. The group stays
one of the consumer protocol (no downgrades): conversion is tested elsewhere.
"""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerConfig
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.topics import TopicIdPartition
from tests.support.drivers.group_world import GroupWorld
from tests.unit.group.model_consumers import ModelConsumer
from tests.unit.group.model_guests import ModelClassicMember

FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE
SUBSCRIPTIONS = [("t",), ("t", "u")]
clients = classics = st.integers(0, 2)
LIVES = ["start", "live", "live", "live", "lose", "crash", "leave"]
DEEDS = ["start", "act", "act", "act", "lose", "crash", "leave"]


class RandomClassicMembers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.g = GroupWorld(consumer=ConsumerConfig(downgrades=False))
        self.g.make_topic("t", 4)
        self.g.make_topic("u", 2)
        self.clients = [
            ModelConsumer(self.g, f"c{n}", None, SUBSCRIPTIONS[n % 2]) for n in range(3)
        ]
        self.classic_members = [
            ModelClassicMember(self.g, f"x{n}", SUBSCRIPTIONS[n % 2], n == 1) for n in range(3)
        ]
        # One that stays: an Empty group would become classic with the next classic member.
        self.anchor = ModelConsumer(self.g, "anchor", None, ("t", "u"))
        self.anchor.start()
        self._live(self.anchor)

    def _live(self, client: ModelConsumer) -> None:
        client.read()
        client.act()
        client.beat()
        client.read()

    @rule(which=clients, what=st.sampled_from(LIVES))
    def client(self, which: int, what: str) -> None:
        client = self.clients[which]
        match what:
            case "start":
                client.start()
            case "live":
                self._live(client)
            case "lose":
                client.lose_answer()
            case "crash":
                client.crash()
            case "leave":
                client.leave(-1)

    @rule(which=st.integers(0, 6))
    def others_go_on(self, which: int) -> None:
        """All but one, who takes its time: what it should not have yet, they may get now."""
        for _ in range(3):
            self.g.sleep(1_000)
            for at, client in enumerate((*self.clients, self.anchor)):
                if at != which:
                    self._live(client)
                    client.act()
                    self.no_partition_is_read_by_two()
            for at, classic in enumerate(self.classic_members, 4):
                if at != which:
                    classic.act()
                    self.no_partition_is_read_by_two()

    @rule(
        which=classics,
        what=st.sampled_from(["start", "act", "act", "act", "lose", "crash", "leave"]),
    )
    def classic(self, which: int, what: str) -> None:
        classic = self.classic_members[which]
        match what:
            case "start":
                classic.start()
            case "act":
                classic.act()
            case "lose":
                classic.lose_answer()
            case "crash":
                classic.crash()
            case "leave":
                classic.leave()

    @rule(ms=st.sampled_from([100, 1_000, 5_000]))
    def sleep(self, ms: int) -> None:
        for _ in range(max(ms // 1_000, 1)):
            self.g.sleep(min(ms, 1_000))
            self._live(self.anchor)

    @precondition(lambda self: self.g.write is not None)
    @rule(fails=st.booleans(), stored=st.booleans())
    def write_ends(self, fails: bool, stored: bool) -> None:
        if fails:
            self.g.write_done(FAILED, stored=stored)
        else:
            self.g.write_done()

    @rule(holds=st.booleans())
    def hold_writes(self, holds: bool) -> None:
        self.g.hold_writes = holds
        if not holds and self.g.write is not None:
            self.g.write_done()

    @rule()
    def restart(self) -> None:
        self.g.restart()
        for client in (*self.clients, self.anchor):
            client.lose_answer()
        for classic in self.classic_members:
            classic.lose_answer()

    @property
    def group(self) -> ConsumerGroup:
        group = self.g.groups.by_id["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        read: Counter[TopicIdPartition] = Counter()
        members = self.group.members
        for client in (*self.clients, self.anchor):
            if client.is_alive and client.member_id in members:
                read.update(client.reading)
        for classic in self.classic_members:
            if classic.is_alive and classic.member_id in members:
                read.update(classic.reading)
        assert all(count == 1 for count in read.values()), read

    def teardown(self) -> None:
        """All cooperate from now on: the group must come to rest."""
        self.g.hold_writes = False
        if self.g.write is not None:
            self.g.write_done()
        for _ in range(60):
            self.g.sleep(2_000)
            for client in (*self.clients, self.anchor):
                self._live(client)
                client.act()
                self.no_partition_is_read_by_two()
            for classic in self.classic_members:
                for _ in range(4):
                    classic.act()
                    self.no_partition_is_read_by_two()
        self.g.assert_state("Stable")
        everyone: list[ModelConsumer | ModelClassicMember] = [
            *self.clients,
            self.anchor,
            *self.classic_members,
        ]
        read = [place for one in everyone if one.is_alive for place in one.reading]
        assert len(read) == len(set(read)) == 6, read


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RandomClassicMembers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_8_15_8_30_members_of_both_protocols_never_share_a_partition() -> None:
    run(examples=40, steps=50)


def live(seed: int, steps: int) -> None:
    """Mostly in peace, so that groups get far: what moves is then given back late."""
    rng = random.Random(seed)
    world = RandomClassicMembers()
    for _ in range(steps):
        match rng.choices(range(7), (25, 25, 20, 12, 2, 2, 4))[0]:
            case 0:
                world.others_go_on(rng.randrange(7))
            case 1:
                world.classic(rng.randrange(3), "act")
            case 2:
                world.client(rng.randrange(3), "live")
            case 3:
                world.client(rng.randrange(3), "start")
                world.classic(rng.randrange(3), "start")
            case 4:
                world.restart()
            case 5:
                world.hold_writes(rng.random() < 0.5)
            case 6:
                world.client(rng.randrange(3), rng.choice(["leave", "crash", "lose"]))
        world.no_partition_is_read_by_two()
    world.teardown()


@pytest.mark.parametrize("seed", range(20))
def test_8_15_8_30_members_of_both_protocols_in_peace(seed: int) -> None:
    live(seed, 150)


@pytest.mark.slow
def test_8_15_8_30_members_of_both_protocols_for_long() -> None:
    run(examples=1_000, steps=80)
