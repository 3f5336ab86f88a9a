"""Random producers against the invariants of transactions, in virtual time.

Producers of both transaction versions share two transactional ids: they fence each other, repeat
themselves, wake up from the dead and send what makes no sense; answers are lost, writes fail or
succeed in secret, markers are late, the worker is killed or gives its slot up, time passes.

Every answer is judged when it is given (`Witness`): what it promises is stored, numbers and epochs
go up only, a fenced producer gets nothing, and markers are of one kind, which is what the producer
was answered. At the end all cooperate: every request is answered and every transaction has ended.
"""

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
from msgspec.structs import replace

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import TimerKey
from moldau.broker.txn.events import Add, MarkersWritten
from moldau.broker.txn.record import TxnPartition, TxnState, encode
from moldau.broker.txn.transaction_data import TimerKind
from moldau.broker.txn.transitions import Identity
from tests.support.drivers.txn_driver import GROUPS, P0, P1, P2
from tests.unit.txn.txn_producers import Producer, WitnessedDriver

FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE
PLACES = [P0, P1, P2, GROUPS]
NAMES = ["t", "u"]
names = st.sampled_from(NAMES)
partitions = st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)


class RandomProducers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = WitnessedDriver(id_expiration_ms=20_000)
        self.producers: list[Producer] = []

    @initialize(epoch=st.sampled_from([0, 32_760, 32_764, 32_766]))
    def begin(self, epoch: int) -> None:
        """One id is old: its epochs and numbers are about to run out."""
        world = self.world
        first = Producer(world, "u", v2=True, timeout_ms=5_000)
        first.cooperate([], commit=True)
        first.identity = Identity(first.identity.producer_id, epoch)
        world.witness.latest["u"] = first.identity
        world.witness.seen["u"] = {first.identity}
        record = replace(world.record("u"), producer_epoch=epoch, number=2**31 - 3)
        world.stored["u"] = encode(record)
        world.restart()
        world.hold_writes = world.hold_markers = True
        self.producers = [first, Producer(world, "t", v2=False, timeout_ms=5_000)]

    # --- producers ---

    @rule(name=names, v2=st.booleans(), timeout_ms=st.sampled_from([1_000, 5_000]))
    def new_process(self, name: str, v2: bool, timeout_ms: int) -> None:
        """The ones before it are not dead, only asleep."""
        producer = Producer(self.world, name, v2=v2, timeout_ms=timeout_ms)
        producer.init()
        self.producers.append(producer)

    @rule(
        data=st.data(),
        partitions=partitions,
        commit=st.booleans(),
        steps=st.integers(1, 8),
        store_answers=st.booleans(),
        logs_answer=st.booleans(),
    )
    def one_works(
        self,
        data: st.DataObject,
        partitions: list[TxnPartition],
        commit: bool,
        steps: int,
        store_answers: bool,
        logs_answer: bool,
    ) -> None:
        producer = data.draw(st.sampled_from(self.producers[-4:]))
        for _ in range(steps):
            producer.cooperate(partitions, commit)
            if store_answers:
                self._serve(logs_answer)

    @rule(
        data=st.data(),
        what=st.sampled_from(["init", "goes on", "add", "verify", "peer", "commit", "abort"]),
        partitions=partitions,
    )
    def one_misbehaves(
        self, data: st.DataObject, what: str, partitions: list[TxnPartition]
    ) -> None:
        """It sends something, whatever it has sent before; the answer before is not heard."""
        producer = data.draw(st.sampled_from(self.producers))
        producer.hear()
        match what:
            case "init":
                producer.identity = Identity(-1, -1)
                producer.init()
            case "goes on":
                producer.init()
            case "commit" | "abort":
                producer.end(what == "commit")
            case _:
                producer.add(
                    *partitions,
                    verify_only=what == "verify",
                    waits=what != "peer",
                )

    @rule(
        data=st.data(),
        joins=st.lists(st.tuples(partitions, st.booleans(), st.booleans()), min_size=2, max_size=6),
    )
    def batches_join(
        self, data: st.DataObject, joins: list[tuple[list[TxnPartition], bool, bool]]
    ) -> None:
        """Batches of one producer to several partitions, asked for by their leaders."""
        producer = data.draw(st.sampled_from(self.producers))
        producer.hear()
        for partitions, verify_only, waits in joins:
            self.world.ask(
                producer.name,
                lambda call, p=partitions, v=verify_only, w=waits: Add(
                    call, *producer.identity, tuple(p), v, 5, w
                ),
            )

    @precondition(lambda self: self.world.witness.marked)
    @rule(data=st.data(), name=names)
    def markers_are_reported_again(self, data: st.DataObject, name: str) -> None:
        """A try that was given up reports them, after another one had written them."""
        being_written = {one.number for one in self.world.markers}
        numbers = sorted({number for _, number in self.world.witness.marked} - being_written)
        if numbers:
            number = data.draw(st.sampled_from(numbers))
            self.world.send(name, MarkersWritten(number))

    @rule(data=st.data())
    def answers_are_lost(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(self.producers))
        producer.lose_connection()
        producer.hear()

    @rule()
    def all_hear(self) -> None:
        for producer in self.producers:
            producer.hear()

    # --- store, markers, time, worker ---

    @precondition(lambda self: self.world.writes)
    @rule(data=st.data(), fails=st.booleans(), stored=st.booleans())
    def write_ends(self, data: st.DataObject, fails: bool, stored: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.writes)))
        error = FAILED if fails else ErrorCode.NONE
        self.world.write_done(name, error, stored=stored or not fails)

    @precondition(lambda self: self.world.markers)
    @rule(name=names)
    def markers_end(self, name: str) -> None:
        self.world.markers_done(name)

    @rule(ms=st.sampled_from([1, 50, 100, 1_000, 5_000]))
    def sleep(self, ms: int) -> None:
        self.world.sleep(ms)

    @rule()
    def a_long_time_passes(self) -> None:
        """Ids that are not in use are removed."""
        self.world.sleep(20_000)
        known = set(self.world.transactions.by_id)
        self.world.run(self.world.transactions.expire(self.world.now))
        assert known == set(self.world.transactions.by_id)

    @rule(kind=st.sampled_from(TimerKind), name=names)
    def stray_timer(self, kind: TimerKind, name: str) -> None:
        key = TimerKey(name, kind)
        if key not in self.world.timers:
            self.world.fire(key)

    @rule(what=st.sampled_from(["killed", "killed after the write", "moved"]))
    def worker_is(self, what: str) -> None:
        world = self.world
        if what == "moved":
            world.give_up()
            assert not world.waiting
            assert not world.timers
        if what == "killed after the write":
            for write in world.writes.values():
                world.store(write)
        world.restart()
        for producer in self.producers:
            if producer.call is not None and producer.call.waits:
                producer.lose_connection()

    def _serve(self, logs_answer: bool = True) -> None:
        """The store is well, and the logs are, too."""
        world = self.world
        while world.writes or (logs_answer and world.markers):
            for name in sorted(world.writes):
                world.write_done(name)
            for name in NAMES if logs_answer else ():
                world.markers_done(name)

    # --- invariants ---

    @invariant()
    def every_wait_ends(self) -> None:
        world = self.world
        armed = {
            key: at for one in world.transactions.by_id.values() for key, at in one._armed.items()
        }
        assert world.timers == armed
        for name, one in world.transactions.by_id.items():
            kinds = {key.kind for key in world.timers if key.name == name}
            assert (one.write is not None) == (name in world.writes)
            record = one.record
            if one.write is None:
                for waiting in one.waiting:
                    assert waiting.until_ms is not None
                    assert waiting.until_ms > world.now - 1
                assert not one.waiting or TimerKind.MARKERS in kinds
                assert not one.waiting or record is not None
                assert not one.in_doubt or TimerKind.PERSIST_RETRY in kinds
            if record is None:
                assert one.write is not None or one.in_doubt
                continue
            if record.state is TxnState.ONGOING and not one.is_overdue:
                deadline = record.started_ms + record.timeout_ms
                assert world.timers[TimerKey(name, TimerKind.TIMEOUT)] <= deadline
            if one.is_overdue:
                assert record.state is TxnState.ONGOING
                assert one.write is not None or TimerKind.PERSIST_RETRY in kinds
            if record.state.is_ending:
                assert [m for m in world.markers if m.transactional_id == name]
            assert sorted(one.partitions) == sorted(record.partitions)
            assert bool(record.partitions) == (
                record.state is TxnState.ONGOING or record.state.is_ending
            )

    def teardown(self) -> None:
        """Everybody behaves from now on."""
        if not self.producers:
            return
        world = self.world
        for _ in range(20):
            for producer in self.producers:
                producer.hear()
            self._serve()
            world.sleep(1_000)
            self._serve()
        assert not world.waiting
        world.witness.check_everything_has_ended()
        for name in NAMES:
            assert world.state(name) in (None, "Empty", "CompleteCommit", "CompleteAbort")
            self._can_be_used(name)
        assert not world.waiting

    def _can_be_used(self, name: str) -> None:
        for v2 in (False, True):
            producer = Producer(self.world, name, v2=v2, timeout_ms=5_000)
            for commit in (True, False, True):
                while producer.number is None:
                    producer.cooperate([P0], commit)
                    self._serve()
                    producer.hear()
                    assert not producer.is_dead
                while producer.number is not None:
                    producer.cooperate([P0], commit)
                    self._serve()
                    producer.hear()
                    assert not producer.is_dead
            self.world.sleep(2_000)
            self._serve()
            assert self.world.record(name).state == "CompleteCommit"


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RandomProducers,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_producers() -> None:
    run(examples=150, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_producers_for_long() -> None:
    run(examples=3_000, steps=80)
