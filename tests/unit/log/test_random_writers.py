"""Random faults against the promises of the log, without a store and without a clock.

Two workers append to one log for producers that pipeline, time out, change workers and send again.
Replies are late, lost or refusals, connections break with an append out that arrives afterwards,
replicas lag, the store loses its tail. Whenever a batch is acknowledged it is in the log at the
offset that was answered; no batch is ever stored twice; the batches of a producer are in order. In
the end everything works again: every producer finishes, and every worker knows the same log.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from moldau.broker.log.writing.phases import Phase
from tests.support.drivers.log_world import World

WORKERS, PRODUCERS = 2, 2
workers = st.integers(0, WORKERS - 1)
producers = st.integers(0, PRODUCERS - 1)
acks = st.sampled_from([-1, 0, 1])


class RandomWriters(RuleBasedStateMachine):
    may_lose = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(WORKERS, PRODUCERS)
        self.served_by = [0] * PRODUCERS

    @initialize(replicas=st.integers(0, 1), is_loaded=st.booleans())
    def begin(self, replicas: int, is_loaded: bool) -> None:
        self.world.store.replicas = replicas
        if is_loaded:
            for worker in range(WORKERS):
                self.produce_plain(worker, -1)
            self.world.settle()

    # --- producers ---

    @rule(which=producers, batches=st.integers(1, 4), replicas=acks)
    def produce(self, which: int, batches: int, replicas: int) -> None:
        worker = self.world.workers[self.served_by[which]]
        for _ in range(batches):
            self.world.producers[which].produce(worker, replicas)

    @rule(which=producers, replicas=acks)
    def send_again(self, which: int, replicas: int) -> None:
        self.world.producers[which].send(self.world.workers[self.served_by[which]], replicas)

    @rule(which=producers, worker=workers, times_out=st.booleans())
    def turn_to(self, which: int, worker: int, times_out: bool) -> None:
        self.served_by[which] = worker
        self.world.producers[which].give_up(times_out=times_out)
        self.world.producers[which].send(self.world.workers[worker], 0)

    @rule(which=producers, worker=workers)
    def produce_through(self, which: int, worker: int) -> None:
        self.turn_to(which, worker, False)
        self.produce(which, 1, -1)
        self.world.workers[worker].go_on()

    @rule(worker=workers, replicas=acks)
    def produce_plain(self, worker: int, replicas: int) -> None:
        self.world.produce_plain(self.world.workers[worker], replicas)

    # --- the store and its connections ---

    @rule(worker=workers)
    def go_on_for_long(self, worker: int) -> None:
        self.world.workers[worker].go_on()

    @rule(worker=workers, choices=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def go_on(self, worker: int, choices: list[int]) -> None:
        for index in choices:
            if self.world.workers[worker].pending:
                self.world.workers[worker].happen(index)

    @rule(worker=workers, index=st.integers(0, 3))
    def refuse(self, worker: int, index: int) -> None:
        if self.world.workers[worker].pending:
            self.world.workers[worker].happen(index, fails=True)

    @rule(worker=workers)
    def refuse_an_append(self, worker: int) -> None:
        """While batches wait behind it."""
        self.world.workers[worker].go_on(until="send")
        for which in range(PRODUCERS):
            if self.served_by[which] == worker:
                self.produce(which, 1, -1)
        self.refuse(worker, 0)

    @rule(worker=workers, fate=st.sampled_from(["lost", "stored", "late"]))
    def cut(self, worker: int, fate: str) -> None:
        self.world.workers[worker].cut(fate)

    @rule(worker=workers, fate=st.sampled_from(["lost", "stored", "late"]))
    def cut_with_an_append_out(self, worker: int, fate: str) -> None:
        """While the other worker appends as well."""
        self.world.workers[worker].go_on(until="send")
        self.world.workers[1 - worker].go_on()
        self.cut(worker, fate)

    @rule(worker=workers)
    def connect(self, worker: int) -> None:
        self.world.workers[worker].connect()

    @rule(worker=workers)
    def arrive_late_before_it_is_sent_again(self, worker: int) -> None:
        self.world.workers[worker].connect()
        self.world.workers[worker].go_on(until="send")
        self.world.workers[worker].arrive_late()

    @rule(worker=workers)
    def arrive_late(self, worker: int) -> None:
        self.world.workers[worker].arrive_late()

    @rule(worker=workers, reached=st.integers(0, 1))
    def replicas_answer(self, worker: int, reached: int) -> None:
        self.world.workers[worker].replicated(reached)

    @rule(replicas=st.integers(0, 1))
    def replicas_are(self, replicas: int) -> None:
        self.world.store.replicas = replicas

    @rule(lost=st.integers(0, 2), fate=st.sampled_from(["lost", "stored"]), hears=st.booleans())
    def change_store(self, lost: int, fate: str, hears: bool) -> None:
        if self.may_lose:
            self.world.change_store(lost, fate=fate, hears=hears)

    # --- other workers' appends ---

    @rule(worker=workers, what=st.sampled_from(["look", "current", "loaded"]))
    def look(self, worker: int, what: str) -> None:
        writer = self.world.workers[worker].writer
        if what == "look":
            writer.look()
        elif what == "current":
            writer.when_current(_ignore)
        else:
            writer.when_loaded(_ignore)

    @rule(worker=workers, skipped=st.integers(0, 8))
    def receive(self, worker: int, skipped: int) -> None:
        self.world.workers[worker].receive(skipped)

    # --- the promises ---

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        world = self.world
        world.settle()
        for worker in world.workers:
            worker.writer.when_current(_ignore)
        world.settle()
        world.check()
        for worker in world.workers:
            assert worker.writer.phase is Phase.IDLE
            assert worker.view.state.snapshot() == world.store.state().snapshot()
            assert worker.view.end == world.store.state().end
        for append in world.plain:
            assert append.answers == 1
        if not self.may_lose:
            assert not any(producer.is_fenced for producer in world.producers)


class RandomLosses(RandomWriters):
    """The same while the store loses the end of the log now and then."""

    may_lose = True


def _ignore(fault: BaseException | None) -> None: ...


def run(machine: Any, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", [RandomWriters, RandomLosses])
def test_random_writers(machine: Any) -> None:
    run(machine, examples=100, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [RandomWriters, RandomLosses])
def test_random_writers_for_long(machine: Any) -> None:
    run(machine, examples=3_000, steps=80)
