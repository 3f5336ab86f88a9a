"""kill -9 at every step of an EndTxn: one marker in each partition, all of one kind.

The steps are found by what goes over the workers' connections to the store: one of them is held,
and whoever is to die is killed once something waits there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.errors import ErrorCode
from broker.wire.messages.end_txn import EndTxnResponse
from tests.support.committed import MarkerSeen, read_transactions
from tests.support.hammer import worker_ports
from tests.support.raw_calls import create_topic
from tests.support.raw_client import RawClient
from tests.support.raw_group import RawMember
from tests.support.raw_transactions import (
    V1,
    V2,
    ClientVersion,
    RawProducer,
    describe_transaction,
)
from tests.support.redis_server import running_redis
from tests.support.routed import owned_by
from tests.support.running import Broker, wait_until
from tests.support.store_proxy import Flow, Link, ProxyThread

Start = Callable[..., Broker]
MakeScene = Callable[[ClientVersion], "Scene"]
TOPIC, PARTITIONS = "orders", 4  # each worker leads two
COORDINATOR, OTHER = 0, 1
PATIENCE_S = 60.0
NOT_NOW = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Step(NamedTuple):
    """Of whose connection to the store what is held, and who is killed then."""

    victim: int
    worker: int
    pipe: str
    are_replies: bool

    def __str__(self) -> str:
        what = "replies" if self.are_replies else "requests"
        return f"worker {self.victim} killed, {what} of moldau-{self.worker}-{self.pipe} held"


STEPS = [
    Step(*each)
    for each in itertools.product(
        (COORDINATOR, OTHER), (COORDINATOR, OTHER), ("groups", "bulk"), (False, True)
    )
]


class Patient:
    """A connection that is made again as often as need be."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: RawClient | None = None

    def call(self, request: Any, version: int | None = None) -> Any:
        answers = []

        def is_answered() -> bool:
            try:
                answers.append(self.call_once(request, version))
            except OSError:
                return False
            return True

        wait_until(is_answered, PATIENCE_S, f"an answer from port {self._port}")
        return answers[0]

    def call_once(self, request: Any, version: int | None = None) -> Any:
        try:
            if self._client is None:
                self._client = RawClient(self._port)
            return self._client.call(request, version)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Scene:
    """A producer that survives everything, in transactions over four partitions and two groups."""

    def __init__(self, broker: Broker, proxy: ProxyThread, client: ClientVersion) -> None:
        self.broker, self._proxy = broker, proxy
        ports = worker_ports(broker)
        with RawClient(ports[0]) as raw:
            create_topic(raw, TOPIC, partitions=PARTITIONS)
        self.groups = [owned_by(worker) for worker in (COORDINATOR, OTHER)]
        self.producer = RawProducer(broker, owned_by(COORDINATOR), client, direct=True)
        self.producer.by_worker = [Patient(port) for port in ports]  # type: ignore[misc]
        self.coordinator = self.producer.by_worker[COORDINATOR]
        self.producer.coordinator = self.coordinator
        self._ports = ports
        self._round = 0
        self._before: list[int] = []
        self.producer.begin()

    # --- a transaction ---

    def write(self) -> None:
        """Something everywhere."""
        self._round += 1
        self._before = [len(markers) for markers in self.markers()]
        producer = self.producer
        if producer.client.adds:
            until_done(lambda: max(producer.add(TOPIC, *range(PARTITIONS)).values()))
        for partition in range(PARTITIONS):
            value = b"%d" % self._round
            until_done(
                lambda number=partition, value=value: (  # type: ignore[misc]
                    producer.send(TOPIC, value, partition=number).error_code
                )
            )
        for group in self.groups:
            if producer.client.adds:
                until_done(lambda group=group: producer.add_offsets(group))  # type: ignore[misc]
            until_done(
                lambda group=group: producer.commit_offset(group, TOPIC, self._round)  # type: ignore[misc]
            )

    def end(self, *, commit: bool) -> None:
        """Until there is an answer."""
        answer: list[EndTxnResponse] = []

        def ask() -> int:
            answer[:] = [self.producer.end(commit=commit)]
            return answer[0].error_code

        until_done(ask)

    def markers(self) -> list[list[MarkerSeen]]:
        """Of each partition."""
        return [
            read_transactions(self._ports[OTHER], TOPIC, number).markers
            for number in range(PARTITIONS)
        ]

    def state(self) -> str:
        found = describe_transaction(self.coordinator, self.producer.transactional_id)
        return str(found.transaction_state) if not found.error_code else ""

    def committed(self, group: str) -> int:
        port = self._ports[self.groups.index(group)]
        with RawMember(port, group) as member:
            return member.committed(TOPIC)

    # --- what happens ---

    def flow(self, step: Step) -> tuple[Link, Flow]:
        name = f"moldau-{step.worker}-{step.pipe}"
        found: list[Link] = []

        def is_there() -> bool:
            found[:] = [link for link in self._proxy.links() if link.name == name]
            return bool(found)

        wait_until(is_there, PATIENCE_S, f"{name} is connected")
        link = found[-1]
        return link, link.replies if step.are_replies else link.requests

    def do(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def do() -> None:
            work()
            done.set()

        self._proxy.call(do)
        assert done.wait(PATIENCE_S)

    def kill(self, worker: int) -> None:
        pid = self.broker.pids("worker")[worker]
        os.kill(pid, signal.SIGKILL)
        self.broker.wait_restarted("worker", worker, pid)

    # --- the proof ---

    def check(self, kind: bool | None) -> bool:
        """One marker more everywhere, all of one kind, and the offsets have come to the same end.
        `kind`: which; None: either of them, and InitProducerId has been answered since. Says which.
        """
        ended = "Empty" if kind is None else "CompleteCommit" if kind else "CompleteAbort"
        wait_until(lambda: self.state() == ended, PATIENCE_S, f"it is {ended}")
        new = [found[before:] for found, before in zip(self.markers(), self._before, strict=True)]
        assert [len(found) for found in new] == [1] * PARTITIONS, new
        kinds = {found[0].commit for found in new}
        numbers = {found[0].number for found in new}
        assert len(kinds) == 1, new
        assert len(numbers) == 1, new
        commit = kinds.pop()
        assert kind in (None, commit), new
        for group in self.groups:
            committed = self.committed(group)
            assert (committed == self._round) == commit, f"{group}: {committed}, {self._round}"
        return commit


def until_done(ask: Callable[[], int]) -> None:
    codes: list[ErrorCode] = []

    def is_done() -> bool:
        codes.append(ErrorCode(ask()))
        assert codes[-1] is ErrorCode.NONE or codes[-1] in NOT_NOW, codes
        return codes[-1] is ErrorCode.NONE

    wait_until(is_done, PATIENCE_S, "it is done")


@pytest.fixture
def make_scene(start_moldau: Start, tmp_path: Path) -> Iterator[MakeScene]:
    with (
        running_redis(tmp_path / "redis") as redis,
        ProxyThread(redis.port, lambda link: None) as proxy,
        contextlib.ExitStack() as stack,
    ):

        def make(client: ClientVersion) -> Scene:
            broker = start_moldau(redis=f"redis://127.0.0.1:{proxy.port}", workers=2)
            scene = Scene(broker, proxy, client)
            stack.callback(lambda: [each.close() for each in scene.producer.by_worker])
            return scene

        yield make


def strike(scene: Scene, step: Step, *, commit: bool, late: bool) -> EndTxnResponse | None:
    """EndTxn, the kill in the middle of it, and what was answered to the first EndTxn.

    `late`: what the victim had sent arrives in the end.
    """
    link, flow = scene.flow(step)
    scene.do(flow.hold)
    answers: list[EndTxnResponse] = []

    def end() -> None:
        producer = scene.producer
        patient, producer.coordinator = (
            producer.coordinator,
            RawClient(worker_ports(scene.broker)[0]),
        )
        with contextlib.suppress(OSError), producer.coordinator:
            answers.append(producer.end(commit=commit))
        producer.coordinator = patient

    ending = threading.Thread(target=end)
    ending.start()
    wait_until(lambda: flow.waiting > 0, PATIENCE_S, f"something is held: {step}")
    scene.kill(step.victim)
    if step.victim == step.worker and not late:
        scene.do(link.cut)
    elif step.victim != step.worker:
        scene.do(flow.release)
    ending.join(PATIENCE_S)
    assert not ending.is_alive()
    return answers[0] if answers else None


def run(scene: Scene, steps: list[Step], *, commit: bool) -> None:
    for number, step in enumerate(steps):
        scene.write()
        _, flow = scene.flow(step)
        answer = strike(scene, step, commit=commit, late=number % 4 < 2)
        if answer is None or answer.error_code:
            scene.end(commit=commit)
        scene.check(commit)
        scene.do(flow.release)  # what the dead had on its way changes nothing any more
        scene.check(commit)


@pytest.mark.parametrize(
    ("client", "commit", "victims"),
    [
        pytest.param(V1, True, [COORDINATOR], id="v1-commit-coordinator"),
        pytest.param(V2, False, [OTHER], id="v2-abort-leader"),
        pytest.param(V1, False, [COORDINATOR, OTHER], id="v1-abort", marks=pytest.mark.slow),
        pytest.param(V2, True, [COORDINATOR, OTHER], id="v2-commit", marks=pytest.mark.slow),
        pytest.param(V1, True, [OTHER], id="v1-commit-leader", marks=pytest.mark.slow),
        pytest.param(V2, False, [COORDINATOR], id="v2-abort-coordinator", marks=pytest.mark.slow),
    ],
)
def test_7_15_kill_9_at_every_step_of_an_ending(
    make_scene: MakeScene, client: ClientVersion, commit: bool, victims: list[int]
) -> None:
    steps = [step for step in STEPS if step.victim in victims]
    run(make_scene(client), steps, commit=commit)


def test_7_15_kill_9_before_the_end_is_noted(make_scene: MakeScene) -> None:
    """All markers are there, Complete* is not stored yet: the next owner writes none again."""
    scene = make_scene(V2)
    for victim, commit in ((COORDINATOR, True), (OTHER, False), (COORDINATOR, False)):
        scene.write()
        before = sum(map(len, scene.markers()))
        scene.end(commit=commit)
        wait_until(
            lambda before=before: sum(map(len, scene.markers())) == before + PARTITIONS,  # type: ignore[misc]
            PATIENCE_S,
            "its markers are written",
        )
        scene.kill(victim)
        scene.check(commit)


def test_7_15_the_producer_does_not_come_again(make_scene: MakeScene) -> None:
    """Its successor gets an answer once all is decided, one way or the other."""
    scene = make_scene(V1)
    decided = []
    for step in STEPS[:2]:  # the coordinator dies before the decision is stored, and behind it
        assert (step.victim, step.worker, step.pipe) == (COORDINATOR, COORDINATOR, "groups")
        scene.write()
        answer = strike(scene, step, commit=True, late=False)
        assert answer is None
        until_done(lambda: scene.producer.init().error_code)
        decided.append(scene.check(None))
    assert decided == [False, True]
