"""A leader that is stopped while markers are due: it is not waited for, and late when it wakes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.ending import (
    COORDINATOR,
    OTHER,
    PARTITIONS,
    PATIENCE_S,
    TOPIC,
    MakeScene,
    Scene,
    scenes,
)
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.client import RawClient
from tests.support.raw.transactions import V1, V2, ClientVersion, open_transactions

Start = Callable[..., Broker]


@pytest.fixture
def make_scene(start_moldau: Start, tmp_path: Path) -> Iterator[MakeScene]:
    with scenes(start_moldau, tmp_path) as make:
        yield make


@contextmanager
def stopped(scene: Scene, worker: int) -> Iterator[None]:
    """SIGSTOP; the supervisor too, or it would start another in its place."""
    pids = [scene.broker.pid, scene.broker.pids("worker")[worker]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def open_in(port: int) -> list[int]:
    """How many transactions each partition has open, by that worker."""
    with RawClient(port) as client:
        return [len(open_transactions(client, TOPIC, number)) for number in range(PARTITIONS)]


@pytest.mark.parametrize("client", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("is_sent", [False, True], ids=["asked", "sent"])
def test_7_16_a_stopped_leader_is_not_waited_for(
    make_scene: MakeScene, client: ClientVersion, commit: bool, is_sent: bool
) -> None:
    """It wakes with the marker it was asked to write, or with one on its way to the store. By then
    the producer's next transaction is open, which it must not end."""
    scene = make_scene(client)
    scene.groups = scene.groups[:1]  # of the coordinator: only its owner can end offsets
    scene.reads_from = COORDINATOR
    port = worker_ports(scene.broker)[OTHER]
    scene.write()
    requests = scene.link(OTHER, "bulk").requests
    if is_sent:
        scene.do(requests.hold)
        scene.end(commit=commit)
        wait_until(lambda: requests.waiting > 0, PATIENCE_S, "its marker is on its way")
    with stopped(scene, OTHER):
        if not is_sent:
            scene.end(commit=commit)
        scene.check(commit)
        scene.write(through=COORDINATOR)
        scene.do(requests.release)
    wait_until(lambda: open_in(port) == [1] * PARTITIONS, PATIENCE_S, "it has caught up")
    scene.check_open()
    scene.end(commit=not commit)
    scene.check(not commit)
    assert open_in(port) == [0] * PARTITIONS
