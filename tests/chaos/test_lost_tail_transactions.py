"""A store that comes back without its tail, with transactions at every stage of their lives.

Whatever it lost: each transaction is visible in all partitions or in none as far as its records are
left, readers of committed records get on, and every transactional id can be used again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from moldau.broker.errors import ErrorCode
from tests.support.brokers.routed import owned_by
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.committed import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    latest,
    read_transactions,
)
from tests.support.proofs.ending import NOT_NOW, PARTITIONS, PATIENCE_S, TOPIC, Patient, until_done
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observer import until_answered
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.committed import read_committed
from tests.support.raw.group import RawMember
from tests.support.raw.transactions import V1, V2, ClientVersion, RawProducer
from tests.support.stores.lossy import StorePair, programs
from tests.support.stores.stages import STAGES, Killed, Stage

Start = Callable[..., Broker]
TIMEOUT_MS = 10_000  # of transactions
LARGE = 900_000  # bytes
# Clients abort, and go on. The last one, for a batch, if those before it are lost.
MUST_ABORT = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


class Scene:
    """A broker on a stage, and producers that talk to its workers directly."""

    def __init__(self, start: Start, url: str, stack: contextlib.ExitStack) -> None:
        self._start, self._url, self._stack = start, url, stack
        self.broker = start(redis=url, workers=2)
        self.ports = worker_ports(self.broker)
        with RawClient(self.ports[0]) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)

    def producer(self, client: ClientVersion, worker: int, name: str = "") -> RawProducer:
        """Whose transactions that worker coordinates."""
        producer = RawProducer(self.broker, name or owned_by(worker), client, direct=True)
        self._stack.enter_context(producer)
        producer.by_worker = [Patient(port) for port in self.ports]  # type: ignore[misc]
        for each in producer.by_worker:
            self._stack.callback(each.close)
        producer.coordinator = producer.by_worker[worker]
        until_done(lambda: producer.init(TIMEOUT_MS).error_code)
        return producer

    def restart(self, stage: Stage) -> None:
        """Workers and store, in order."""
        self.broker.stop()
        stage.strike()
        self.broker = self._start(redis=self._url, workers=2, port=self.broker.port)
        until_answered(self.ports, TOPIC)

    def strike(self, stage: Stage, *, kill: bool) -> None:
        if kill:
            self.broker.kill_everything()
            self.broker.stop()
        stage.strike()
        if kill:
            self.broker = self._start(redis=self._url, workers=2, port=self.broker.port)
        until_answered(self.ports, TOPIC)

    def await_stable(self) -> None:
        """Nothing is open any more, as both workers see it."""

        def is_stable() -> bool:
            for port in self.ports:
                with RawClient(port) as client:
                    for number in range(PARTITIONS):
                        end = latest(client, TOPIC, number, READ_UNCOMMITTED)
                        if latest(client, TOPIC, number, READ_COMMITTED) != end:
                            return False
            return True

        wait_until(is_stable, PATIENCE_S, f"readers get on\n{self.broker.log()[-3000:]}")

    def visible(self) -> list[list[bytes]]:
        """The committed values of each partition; all workers and an independent fold agree."""
        found = []
        for number in range(PARTITIONS):
            views = []
            for port in self.ports:
                with RawClient(port) as client:
                    views.append(read_committed(client, TOPIC, partition=number))
                read = read_transactions(port, TOPIC, number)
                read.check_markers()
                assert not read.open
                assert sorted(read.committed) == sorted(views[-1])  # type: ignore[type-var]
            assert views[0] == views[1]
            found.append([value for value in views[0] if value is not None])
        return found


@pytest.fixture(
    params=[
        "cut",
        pytest.param("torn", marks=pytest.mark.slow),
        pytest.param("older", marks=pytest.mark.slow),
        pytest.param("lagging", marks=pytest.mark.slow),
    ]
)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with STAGES[request.param](tmp_path, programs()["valkey"]) as made:
        yield made


@pytest.fixture
def scene(start_moldau: Start, stage: Stage) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(start_moldau, stage.url, stack)


def write(producer: RawProducer, value: str) -> None:
    """Write a value to every partition."""
    if producer.client.adds:
        until_done(lambda: max(producer.add(TOPIC, *range(PARTITIONS)).values()))
    for partition in range(PARTITIONS):
        until_done(
            lambda number=partition: (  # type: ignore[misc]
                producer.send(TOPIC, value.encode(), partition=number).error_code
            )
        )


def end(producer: RawProducer, *, commit: bool) -> ErrorCode:
    """The first answer that is one."""
    answers: list[ErrorCode] = []

    def is_answered() -> bool:
        answers[:] = [ErrorCode(producer.end(commit=commit).error_code)]
        return answers[0] not in NOT_NOW

    wait_until(is_answered, PATIENCE_S, "EndTxn is answered")
    return answers[0]


@pytest.mark.parametrize("client", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("kill", [False, True], ids=["workers-live", "workers-killed"])
def test_transactions_at_every_stage_when_the_tail_is_lost(
    scene: Scene, stage: Stage, client: ClientVersion, kill: bool
) -> None:
    before = ["whole", "committed", "aborted", "left", "ends", "goes-on", "halved", "then"]
    names = [*before, "unknown", "unknown-open"]
    ids = {name: owned_by(number % 2) for number, name in enumerate(names)}
    workers = {name: number % 2 for number, name in enumerate(names)}
    producers: dict[str, RawProducer] = {}
    for name in before:
        producers[name] = scene.producer(client, workers[name], ids[name])
        write(producers[name], name)
    assert end(producers["whole"], commit=True) is ErrorCode.NONE
    wait_until(lambda: markers_of(scene, producers["whole"]) == PARTITIONS, PATIENCE_S, "markers")
    stage.prepare()

    assert end(producers["committed"], commit=True) is ErrorCode.NONE
    assert end(producers["aborted"], commit=False) is ErrorCode.NONE
    for name in ("unknown", "unknown-open"):
        producers[name] = scene.producer(client, workers[name], ids[name])
        write(producers[name], name)
    assert end(producers["unknown"], commit=True) is ErrorCode.NONE
    write(producers["halved"], "its other half")
    # The transaction after the one that is lost is open: its batches are not part of that one.
    assert end(producers["then"], commit=True) is ErrorCode.NONE
    write(producers["then"], "the next one")

    scene.strike(stage, kill=kill)

    # Some end what they had open, others go on; the rest never come back. What was open may have
    # lost records, so none of it can be committed any more.
    codes = {name: end(producers[name], commit=True) for name in ("ends", "halved")}
    codes |= {name: goes_on(producers[name]) for name in ("goes-on", "then")}
    assert ErrorCode.NONE not in codes.values()
    if not kill:  # a living coordinator knows whose it is: its producer aborts, and goes on
        for name, code in codes.items():
            assert code in MUST_ABORT, name
            assert end(producers[name], commit=False) is ErrorCode.NONE
            write(producers[name], f"{name} once more")
            assert end(producers[name], commit=True) is ErrorCode.NONE
    scene.await_stable()
    values = scene.visible()
    seen = {name: [each.count(name.encode()) for each in values] for name in names}
    everywhere, nowhere = [1] * PARTITIONS, [0] * PARTITIONS
    assert seen["whole"] == everywhere
    # A living coordinator knows the decision; without it the transaction was not decided.
    for name in ("committed", "then"):
        assert seen[name] == (nowhere if kill else everywhere), name
    for name in set(names) - {"whole", "committed", "then"}:
        assert seen[name] == nowhere, name
    aborted = {b"its other half", b"more", b"the next one"}
    assert aborted.isdisjoint(itertools.chain(*values))
    for name in codes:
        once_more = [each.count(f"{name} once more".encode()) for each in values]
        assert once_more == (nowhere if kill else everywhere), name

    # Every id is good for another process.
    for name in names:
        again = scene.producer(client, workers[name], ids[name])
        write(again, f"after {name}")
        assert end(again, commit=True) is ErrorCode.NONE
    scene.await_stable()
    values = scene.visible()
    for name in names:
        assert [each.count(f"after {name}".encode()) for each in values] == everywhere, name


def test_librdkafka_aborts_what_may_have_lost_records_and_goes_on(
    start_moldau: Start, tmp_path: Path
) -> None:
    with STAGES["cut"](tmp_path, programs()["valkey"]) as stage, contextlib.ExitStack() as stack:
        scene = Scene(start_moldau, stage.url, stack)
        producer = Producer(
            {"bootstrap.servers": scene.broker.bootstrap, "transactional.id": owned_by(0)}
        )

        def produce(value: str) -> None:
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, value, partition=partition)
            assert producer.flush(PATIENCE_S) == 0

        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        produce("kept")
        stage.prepare()
        produce("lost")
        scene.strike(stage, kill=False)
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(PATIENCE_S)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(PATIENCE_S)
        producer.begin_transaction()
        produce("again")
        producer.commit_transaction(PATIENCE_S)
        scene.await_stable()
        assert scene.visible() == [[b"again"]] * PARTITIONS


@pytest.mark.parametrize("client", [V1, V2], ids=["v1", "v2"])
def test_store_and_workers_are_restarted_together(
    start_moldau: Start, tmp_path: Path, client: ClientVersion
) -> None:
    """Stopped in order, producers go on. After kill -9 no worker knows which epochs they have."""
    with Killed(tmp_path, programs()["valkey"]) as stage, contextlib.ExitStack() as stack:
        scene = Scene(start_moldau, stage.url, stack)
        idle, is_open = (scene.producer(client, worker) for worker in (0, 1))
        write(idle, "first")
        assert end(idle, commit=True) is ErrorCode.NONE
        write(is_open, "open")
        before = [producer.producer_id for producer in (idle, is_open)]

        scene.restart(stage)

        write(idle, "second")
        assert end(idle, commit=True) is ErrorCode.NONE
        # Another worker may have taken records of it after its coordinator was stopped.
        assert end(is_open, commit=True) in MUST_ABORT
        assert end(is_open, commit=False) is ErrorCode.NONE
        write(is_open, "third")
        assert end(is_open, commit=True) is ErrorCode.NONE
        assert [producer.producer_id for producer in (idle, is_open)] == before
        scene.await_stable()
        assert scene.visible() == [[b"first", b"second", b"third"]] * PARTITIONS

        scene.strike(stage, kill=True)

        for producer in (idle, is_open):
            assert end(producer, commit=False) is ErrorCode.PRODUCER_FENCED


def goes_on(producer: RawProducer) -> ErrorCode:
    """Write more, then commit: the first refusal, if there is one."""
    for partition in range(PARTITIONS):
        code = ErrorCode(producer.send(TOPIC, b"more", partition=partition).error_code)
        if code is not ErrorCode.NONE and code not in NOT_NOW:
            return code
    return end(producer, commit=True)


def markers_of(scene: Scene, producer: RawProducer) -> int:
    return sum(
        marker.producer_id == producer.producer_id
        for number in range(PARTITIONS)
        for marker in read_transactions(scene.ports[0], TOPIC, number).markers
    )


@pytest.mark.parametrize("kill", [False, True], ids=["workers-live", "workers-killed"])
def test_offsets_of_transactions_when_the_tail_is_lost(
    scene: Scene, stage: Stage, kill: bool
) -> None:
    """Committed offsets and pending ones come to the same end as their transactions."""
    groups = [owned_by(worker) for worker in (0, 1)]
    one, other = (scene.producer(V2, worker) for worker in (0, 1))
    for group in groups:
        write_offset(one, group, 10)
    assert end(one, commit=True) is ErrorCode.NONE
    wait_until(lambda: committed(scene, groups) == [10, 10], PATIENCE_S, "they are committed")
    for group in groups:
        write_offset(other, group, 20)
    stage.prepare()
    for group in groups:
        write_offset(one, group, 30, partition=1)
    assert end(other, commit=True) is ErrorCode.NONE

    scene.strike(stage, kill=kill)

    wait_until(
        lambda: committed(scene, groups) == ([10, 10] if kill else [20, 20]),
        PATIENCE_S,
        f"they are stable: {committed(scene, groups)}",
    )
    for producer in (one, other):
        again = scene.producer(
            V2, producer.by_worker.index(producer.coordinator), producer.transactional_id
        )
        for group in groups:
            write_offset(again, group, 40)
        assert end(again, commit=True) is ErrorCode.NONE
        wait_until(lambda: committed(scene, groups) == [40, 40], PATIENCE_S, "they are committed")


def write_offset(producer: RawProducer, group: str, offset: int, partition: int = 0) -> None:
    until_done(lambda: producer.commit_offset(group, TOPIC, offset, partition=partition))


def committed(scene: Scene, groups: list[str]) -> list[int]:
    found = []
    for worker, group in enumerate(groups):
        with RawMember(scene.ports[worker], group) as member:
            found.append(member.committed(TOPIC))
    return found


def test_offsets_that_only_the_master_has_are_not_acknowledged(
    start_moldau: Start, tmp_path: Path
) -> None:
    """The replica hangs, then the master and the group's owner die. Had the offsets been
    acknowledged, the transaction would now be committed without them."""
    with StorePair(tmp_path, programs()["valkey"]) as pair, contextlib.ExitStack() as stack:
        scene = Scene(start_moldau, pair.url, stack)
        group = owned_by(1)
        producer = scene.producer(V2, 0)
        write(producer, "record")
        pair.stop_replica(unlink=False)
        with RawClient(scene.ports[0]) as client:
            for _ in range(16):  # more than sockets hold for it
                client.produce(TOPIC, make_batch([(None, b"x" * LARGE, 1)]), acks=1)
        assert producer.commit_offset(group, TOPIC, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker = scene.broker
        pid = broker.kill("worker", 1)
        pair.kill_master()
        pair.promote()
        broker.wait_restarted("worker", 1, pid)
        until_answered(scene.ports, TOPIC)
        write_offset(producer, group, 7)
        assert end(producer, commit=True) is ErrorCode.NONE
        scene.await_stable()
        assert committed(scene, [owned_by(0), group]) == [-1, 7]
