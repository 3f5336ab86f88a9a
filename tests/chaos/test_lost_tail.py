"""A store that comes back without its tail: an offset names one record forever.

Raw requests, one after the other, at a broker with two workers. 100 records are kept; 50 more are
acknowledged, read, and lost. Then one worker appends, the other appends, a producer sends its lost
batch again, another producer begins; all of it once more after restarts of the broker. What must
hold is in tests/support/proofs/observer.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observed_producer import ObservedProducer, new_producer_id
from tests.support.proofs.observer import PATIENCE_S, Observer, read_epochs, until_answered
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import RawMember, coordinator_port, fetch_offsets
from tests.support.stores.lossy import LossyStore, programs
from tests.support.stores.stages import STAGES, Stage

Start = Callable[..., Broker]
TOPIC, GROUP = "orders", "billing"
SERVERS = sorted(programs())


def described(port: int, topic: str) -> tuple[bytes, int]:
    """The topic's id, and the index of the worker that leads its first partition."""
    wanted = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with RawClient(port) as client:
        (found,) = client.call(wanted).topics
    assert found.error_code == 0, found
    return bytes(found.topic_id), found.partitions[0].leader_id


class Scene:
    """A broker with two workers on a stage, and the log of one partition."""

    def __init__(self, start: Start, stage: Stage) -> None:
        self._start = start
        self.stage = stage
        self.broker = start(redis=stage.url, workers=2)
        self.ports = worker_ports(self.broker)
        with RawClient(self.ports[0]) as client:
            create_topic(client, TOPIC)
            answer = client.call(MetadataRequest([MetadataRequestTopic(name=TOPIC)]))
        leader = answer.topics[0].partitions[0].leader_id
        (self.leader,) = [node.port for node in answer.brokers if node.node_id == leader]
        (self.other,) = [port for port in self.ports if port != self.leader]
        self.observer = Observer(self.ports, TOPIC)
        self.ids = [new_producer_id(port) for port in self.ports]

    def producer(self, name: str, port: int) -> ObservedProducer:
        """A producer with an id from that worker."""
        self.ids.append(new_producer_id(port))
        return ObservedProducer(self.observer, name, self.ids[-1])

    def strike(self) -> None:
        self.stage.strike(self.observer.lost_something)
        until_answered(self.ports, TOPIC)

    def check(self) -> int:
        """The proof; the number of epochs the log has spent."""
        self.observer.check(self.stage.url, may_lose=self.stage.loses)
        assert len(set(self.ids)) == len(self.ids), f"given twice: {sorted(self.ids)}"
        return len(read_epochs(self.stage.url, TOPIC, 0))

    def restart(self, *, kill: bool, between: Callable[[], None] = lambda: None) -> None:
        if kill:
            self.broker.kill_everything()
            self.broker.stop()
        else:
            assert self.broker.stop() == 0
        assert "Traceback" not in self.broker.log()
        between()
        self.broker = self._start(redis=self.stage.url, workers=2, port=self.broker.port)


QUICK = {("valkey", "cut"), ("valkey", "lagging"), ("valkey", "planned-uncut"), ("redis", "older")}
EVERY = [
    pytest.param((server, name), marks=[] if (server, name) in QUICK else [pytest.mark.slow])
    for server in SERVERS
    for name in sorted(STAGES)
]


@pytest.fixture(params=EVERY, ids="-".join)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    server, name = request.param
    with STAGES[name](tmp_path, programs()[server]) as made:
        yield made


@pytest.fixture
def scene(start_moldau: Start, stage: Stage) -> Scene:
    return Scene(start_moldau, stage)


def test_an_offset_names_one_record_whatever_became_of_the_store(scene: Scene) -> None:
    observer, leader, other = scene.observer, scene.leader, scene.other
    kept, lost = scene.producer("kept", leader), scene.producer("lost", leader)
    with RawMember(coordinator_port(scene.broker, GROUP), GROUP) as member:
        fetch_offsets(member, GROUP, {})  # once it is loaded
        assert member.commit(TOPIC, 40) == 0
        for _ in range(10):
            kept.send(leader, 10)
        assert member.commit(TOPIC, 90) == 0
        scene.stage.prepare()
        for _ in range(5):
            lost.send(leader, 10)
        assert member.commit(TOPIC, 140) == 0
    assert new_producer_id(other) not in scene.ids  # what the store forgets next
    observer.look()

    scene.strike()

    observer.look()
    assert kept.send(other, 10) >= 100
    observer.look()
    kept.send(leader, 10)
    lost.again(leader)  # its last batch may be gone, and what comes next must not be
    lost.again(other)
    fresh = [scene.producer(f"fresh-{port}", port) for port in (other, leader)]
    for producer in fresh:
        for port in (leader, other):
            producer.send(port, 3)
    plain = ObservedProducer(observer, "plain")
    for port in (leader, other):
        plain.send(port, 3, acks=1)
        lost.send(port, 2)
    epochs = scene.check()
    assert epochs <= 1, "the store came back once"
    assert committed(scene.broker) == 140, "the group's owner lives, and knows it"

    for kill in (False, True):
        scene.restart(kill=kill)
        until_answered(scene.ports, TOPIC)
        assert scene.check() == epochs, "the store lost nothing since"
        assert committed(scene.broker) == 140
        kept.send(other, 1)
        kept.send(leader, 1)
        scene.ids += [new_producer_id(port) for port in scene.ports]
    scene.check()


def committed(broker: Broker) -> int:
    with RawMember(coordinator_port(broker, GROUP), GROUP) as member:
        return member.committed(TOPIC)


@pytest.mark.parametrize(
    "stage",
    [("valkey", "cut"), pytest.param(("valkey", "lagging"), marks=pytest.mark.slow)],
    ids="-".join,
    indirect=True,
)
def test_a_store_that_loses_its_tail_again_and_again(scene: Scene) -> None:
    """Each loss is a gap of its own, also where nothing was appended in between."""
    plain = ObservedProducer(scene.observer, "plain")
    for turn in range(4):
        plain.send(scene.ports[turn % 2], 5)
        scene.stage.prepare()
        for _ in range(turn):
            plain.send(scene.ports[(turn + 1) % 2], 5)
        scene.strike()
        if turn != 1:
            plain.send(scene.ports[turn // 2], 1)
        assert scene.check() <= turn + 1
        scene.stage.recover()


@pytest.mark.parametrize("stage", [("valkey", "cut")], ids="-".join, indirect=True)
def test_a_worker_that_was_stopped_meanwhile_is_refused(scene: Scene) -> None:
    """It wakes with an end that was valid before the loss, and an append on its way."""
    plain = ObservedProducer(scene.observer, "plain")
    for port in (scene.leader, scene.other):
        plain.send(port, 10)
    scene.stage.prepare()
    plain.send(scene.other, 10)
    worker = scene.broker.pids("worker")[scene.ports.index(scene.other)]
    supervisor = scene.broker.pid
    os.kill(supervisor, signal.SIGSTOP)  # or it would start a worker that answers
    os.kill(worker, signal.SIGSTOP)
    try:
        scene.stage.strike(scene.observer.lost_something)
        until_answered([scene.leader], TOPIC)
        plain.send(scene.leader, 10)
    finally:
        os.kill(worker, signal.SIGCONT)
        os.kill(supervisor, signal.SIGCONT)
    plain.send(scene.other, 10)
    plain.send(scene.leader, 10)
    until_answered(scene.ports, TOPIC)
    scene.check()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "stage",
    [
        ("valkey", "cut"),
        pytest.param(("redis", "older"), marks=pytest.mark.slow),
        pytest.param(("valkey", "lagging"), marks=pytest.mark.slow),
    ],
    ids="-".join,
    indirect=True,
)
def test_no_worker_lives_that_knew_what_was_lost(scene: Scene, kill: bool) -> None:
    """What was reserved with the log is all there is to go by."""
    one, plain = scene.producer("one", scene.other), ObservedProducer(scene.observer, "plain")
    for port in scene.ports:
        one.send(port, 10)
        plain.send(port, 10)
    scene.stage.prepare()
    for port in scene.ports:
        one.send(port, 10)
        plain.send(port, 10)
    scene.observer.look()
    scene.restart(kill=kill, between=lambda: scene.stage.strike(scene.observer.lost_something))
    for port in scene.ports:
        one.send(port, 10)
        plain.send(port, 10)
    assert scene.check() == 1
    scene.restart(kill=not kill)
    assert scene.check() == 1


def test_a_store_that_never_syncs(tmp_path: Path, start_moldau: Start) -> None:
    """`appendfsync no`: there is nothing to wait for, so appends must not."""
    with LossyStore(tmp_path / "store", programs()["valkey"]) as store:
        store.kill()
        store.start("--appendfsync", "no")
        broker = start_moldau(redis=store.url, workers=2)
        ports = worker_ports(broker)
        with RawClient(ports[0]) as client:
            create_topic(client, TOPIC)
        observer = Observer(ports, TOPIC)
        plain = ObservedProducer(observer, "plain")
        for _ in range(2):
            for port in ports:
                plain.send(port, 10)
            store.kill()
            store.start("--appendfsync", "no")
        until_answered(ports, TOPIC)
        for port in ports:
            plain.send(port, 1_500)
        observer.check(store.url, may_lose=False)


@pytest.mark.parametrize("server", SERVERS)
def test_a_store_that_comes_back_empty(tmp_path: Path, server: str, start_moldau: Start) -> None:
    """Its topics are gone. One of the same name is another topic, by its id."""
    with LossyStore(tmp_path / "store", programs()[server]) as store:
        broker = start_moldau(redis=store.url, workers=2)
        ports = worker_ports(broker)
        given = [new_producer_id(port) for port in ports]
        with RawClient(ports[0]) as client:
            create_topic(client, TOPIC)
        before, _ = described(ports[0], TOPIC)
        first = Observer(ports, TOPIC)
        for port in ports:
            ObservedProducer(first, f"first-{port}").send(port, 10)
        first.check(store.url)

        store.kill()
        store.empty()
        store.start()

        for port in ports:
            wait_until(lambda port=port: is_unknown(port), PATIENCE_S, "it is gone")  # type: ignore[misc]
        with RawClient(ports[0]) as client:
            create_topic(client, TOPIC)
        for port in ports:
            wait_until(lambda port=port: not is_unknown(port), PATIENCE_S, "it is known")  # type: ignore[misc]
        after, _ = described(ports[0], TOPIC)
        assert after != before
        assert described(ports[1], TOPIC)[0] == after
        second = Observer(ports, TOPIC)
        for port in ports:
            given.append(new_producer_id(port))
            ObservedProducer(second, f"second-{port}", given[-1]).send(port, 10)
        second.check(store.url)
        assert len(set(given)) == 4, given


def is_unknown(port: int) -> bool:
    with RawClient(port) as client:
        answer = client.fetch(TOPIC, 0)
    time.sleep(0.02)
    return bool(answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
