"""kill -9 at every step of an EndTxn: one marker in each partition, all of one kind.

The steps are found by what goes over the workers' connections to the store: one of them is held,
and whoever is to die is killed once something waits there.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.broker.wire.messages.end_txn import EndTxnResponse
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.ending import (
    COORDINATOR,
    OTHER,
    PARTITIONS,
    PATIENCE_S,
    MakeScene,
    Scene,
    scenes,
    until_done,
)
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.client import RawClient
from tests.support.raw.transactions import V1, V2, ClientVersion
from tests.support.stores.proxy import Flow, Link

Start = Callable[..., Broker]


class Step(NamedTuple):
    """A moment of EndTxn: what is held on whose connection to the store, and who is killed."""

    victim: int
    worker: int
    pipe: str
    are_replies: bool

    def flow(self, link: Link) -> Flow:
        return link.replies if self.are_replies else link.requests

    def __str__(self) -> str:
        what = "replies" if self.are_replies else "requests"
        return f"worker {self.victim} killed, {what} of moldau-{self.worker}-{self.pipe} held"


STEPS = [
    Step(*each)
    for each in itertools.product(
        (COORDINATOR, OTHER), (COORDINATOR, OTHER), ("groups", "bulk"), (False, True)
    )
]


@pytest.fixture
def make_scene(start_moldau: Start, tmp_path: Path) -> Iterator[MakeScene]:
    with scenes(start_moldau, tmp_path) as make:
        yield make


def strike(scene: Scene, step: Step, *, commit: bool, late: bool) -> EndTxnResponse | None:
    """EndTxn, the kill in the middle of it, and what was answered to the first EndTxn.

    `late`: what the victim had sent arrives in the end.
    """
    link = scene.link(step.worker, step.pipe)
    flow = step.flow(link)
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
        flow = step.flow(scene.link(step.worker, step.pipe))
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
