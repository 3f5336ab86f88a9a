"""Random clients of the consumer protocol against its one invariant (8.15), in virtual time.

Clients join, take and give back partitions when they like, lose answers, repeat requests, leave,
die and return; topics come, grow and go; writes fail, or happen and are reported as failed; targets
take their time; the worker restarts. At no time do two members read from a partition. At the end
all cooperate: the group is Stable, every partition is read by one of them.
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
from moldau.broker.group.config import ConsumerConfig, ConsumerLimits
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.topics import TopicIdPartition
from tests.support.drivers.group_world import GroupWorld
from tests.unit.group.model_consumers import ModelConsumer

FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE
INSTANCES = {0: "h", 3: "i"}
SUBSCRIPTIONS = [("t",), ("t", "u"), ("u",), ("t", "u", "v")]
CLIENTS = range(5)
clients = st.sampled_from(CLIENTS)


class RandomConsumers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        limits = ConsumerLimits(45_000, 5_000, 1_000)
        self.g = GroupWorld(consumer=ConsumerConfig(limits=limits))
        self.g.make_topic("t", 3)
        self.g.make_topic("u", 2)
        self.clients = [
            ModelConsumer(self.g, f"c{n}", INSTANCES.get(n), SUBSCRIPTIONS[n % 2]) for n in CLIENTS
        ]
        self.epoch = 0

    # --- clients ---

    @rule(which=clients)
    def start(self, which: int) -> None:
        self.clients[which].start()
        self.clients[which].beat()

    @rule(which=clients, says_owned=st.booleans())
    def beat(self, which: int, says_owned: bool) -> None:
        self.clients[which].beat(says_owned=says_owned)

    @rule(which=clients)
    def read(self, which: int) -> None:
        self.clients[which].read()

    @rule(which=clients)
    def act(self, which: int) -> None:
        self.clients[which].act()

    @rule(which=clients)
    def exchange(self, which: int) -> None:
        client = self.clients[which]
        client.read()
        client.act()
        client.beat()
        if self.g.write is not None and not self.g.hold_writes:
            self.g.write_done()
        client.read()

    @rule(which=clients)
    def others_go_on(self, which: int) -> None:
        """All but one, who takes its time: what it should not have yet, they may get now."""
        for _ in range(2):
            self.g.sleep(1_000)
            for at, client in enumerate(self.clients):
                if at != which:
                    self.exchange(at)
                    client.act()
                    self.no_partition_is_read_by_two()

    @rule(which=clients)
    def lose_answer(self, which: int) -> None:
        self.clients[which].lose_answer()

    @rule(which=clients, age=st.integers(0, 3))
    def repeat(self, which: int, age: int) -> None:
        self.clients[which].repeat(age)

    @rule(which=clients, subscription=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, which: int, subscription: tuple[str, ...]) -> None:
        self.clients[which].topics = subscription
        self.clients[which].must_say_all = True

    @rule(which=clients, what=st.sampled_from(["crash", "leave", "leave for a while"]))
    def end(self, which: int, what: str) -> None:
        client = self.clients[which]
        if what == "crash":
            client.crash()
        else:
            client.leave(-2 if client.instance and what != "leave" else -1)

    # --- the world ---

    @rule(ms=st.sampled_from([100, 1_000, 5_000, 20_000]))
    def sleep(self, ms: int) -> None:
        self.g.sleep(ms)

    @rule(topic=st.sampled_from("tuv"), what=st.sampled_from(["grow", "make", "delete"]))
    def change_topics(self, topic: str, what: str) -> None:
        known = self.g.topics.get(topic)
        if what == "grow" and known is not None and known.partitions < 6:
            self.g.grow_topic(topic, known.partitions + 1)
        elif what == "make" and known is None:
            self.g.make_topic(topic, 2)
        elif what == "delete" and known is not None:
            self.g.delete_topic(topic)
            for client in self.clients:  # nothing can be read from it any more
                client.reading = {one for one in client.reading if one[0] != known.topic_id}
                client.wanted = frozenset(o for o in client.wanted if o[0] != known.topic_id)

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

    @rule(holds=st.booleans())
    def hold_jobs(self, holds: bool) -> None:
        self.g.hold_jobs = holds
        if not holds:
            self.g.jobs_done()

    @rule(stored=st.booleans())
    def restart(self, stored: bool) -> None:
        if self.g.write is not None and stored:
            self.g.stored_write(self.g.write)  # it happened, and nobody heard of it
        self.g.restart()
        self.epoch = 0
        for client in self.clients:
            client.lose_answer()

    # --- what must hold ---

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.g.groups.by_id.get("g")
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        group = self.group
        if group is None:
            return
        read: Counter[TopicIdPartition] = Counter()
        for client in self.clients:
            if client.is_alive and client.member_id in group.members:
                read.update(client.reading)
        assert all(count == 1 for count in read.values()), read

    @invariant()
    def counts_are_right(self) -> None:
        group = self.group
        if group is None:
            assert not self.g.timers
            return
        assert self.g.timers.keys() == group._armed.keys()
        assert group.is_writing == (self.g.write is not None)
        holders = {}
        resting = 0
        for member in group.members.values():
            assert member.epoch <= group.target_epoch <= group.group_epoch
            for place in (*member.assigned, *member.revoking):
                assert place not in holders
                holders[place] = member
            resting += member.rests_at == group.target_epoch
            assert bool(member.revoking) == (member.state == "unrevoked")
        assert group.holders == holders
        assert group.resting == resting
        assert group.group_epoch >= self.epoch
        self.epoch = group.group_epoch
        names = {name for member in group.members.values() for name in member.names}
        assert group.subscriptions.all() == names

    def teardown(self) -> None:
        """All cooperate from now on: the group must come to rest."""
        self.g.hold_writes = self.g.hold_jobs = False
        if self.g.write is not None:
            self.g.write_done()
        self.g.jobs_done()
        for _ in range(30):
            self.g.sleep(5_000)
            for client in self.clients:
                client.read()
                client.act()
                client.act()
                self.no_partition_is_read_by_two()
                client.beat()
                client.read()
        alive = [client for client in self.clients if client.is_alive]
        if not alive:
            return
        self.g.assert_state("Stable")
        wanted = {
            (topic.topic_id, number)
            for topic in self.g.topics.values()
            if any(topic.name in client.topics for client in alive)
            for number in range(topic.partitions)
        }
        read = [place for client in alive for place in client.reading]
        assert len(read) == len(set(read))
        assert set(read) == wanted
        assert not self.g.parked


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RandomConsumers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_8_15_no_partition_is_ever_read_by_two() -> None:
    run(examples=60, steps=60)


def live(seed: int, steps: int) -> None:
    """Mostly in peace, so that groups get far: what moves is then given back late, and requests of
    earlier epochs come when it matters."""
    rng = random.Random(seed)
    world = RandomConsumers()
    for _ in range(steps):
        which = rng.choice(CLIENTS)
        match rng.choices(range(8), (25, 20, 15, 12, 15, 2, 2, 4))[0]:
            case 0:
                world.others_go_on(which)
            case 1:
                world.exchange(which)
            case 2:
                world.beat(which, rng.random() < 0.7)
                world.read(which)
            case 3:
                world.start(which)
            case 4:
                world.repeat(which, rng.randrange(3))
            case 5:
                world.restart(rng.random() < 0.5)
            case 6:
                world.hold_writes(rng.random() < 0.5)
            case 7:
                world.end(which, rng.choice(["crash", "leave", "leave for a while"]))
        world.no_partition_is_read_by_two()
        world.counts_are_right()
    world.teardown()


@pytest.mark.parametrize("seed", range(12))
def test_8_15_no_partition_is_read_by_two_in_peace(seed: int) -> None:
    live(seed, 200)


@pytest.mark.slow
def test_8_15_no_partition_is_ever_read_by_two_for_long() -> None:
    run(examples=2_000, steps=100)
