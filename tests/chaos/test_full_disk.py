"""The disk of the embedded store fills up: no record that was acknowledged is lost or replaced.

A real file system of 48 MB. Producers fill it until they are refused; then the broker ends in one
of three ways, room is made, and it starts again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.flood import Flood
from tests.chaos.small_disk import MIB, CannotMount, SmallDisk, small_disk
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observer import Observer, read_epochs, until_answered
from tests.support.raw.calls import create_topic, delete_topic
from tests.support.raw.client import RawClient

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "orders", 12


@pytest.fixture
def disk(short_tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(short_tmp_path / "disk", 48 * MIB) as mounted:
            yield mounted
    except CannotMount as fault:
        pytest.skip(f"{fault}; tests/unit/ops/serve/test_disk_guard.py has the same without")


class Scene:
    def __init__(self, start: Start, disk: SmallDisk, **options: object) -> None:
        self._start = start
        self._options = options
        self.disk = disk
        self.broker = start(workers=2, data_dir=disk.path / "data", **options)
        self.ports = worker_ports(self.broker)
        self.topic = TOPIC
        self.observer = self._observed()
        self._logs = {self.broker.directory / "log"}

    def _observed(self) -> Observer:
        with RawClient(self.ports[0]) as client:
            create_topic(client, self.topic, partitions=PARTITIONS)
        return Observer(self.ports, self.topic, PARTITIONS)

    def next_topic(self, name: str) -> None:
        """Replace the topic, whose records are then no more than a burden."""
        with RawClient(self.ports[0]) as client:
            delete_topic(client, self.topic)
        wait_until(lambda: not self.disk_facts()["refuses_writes"], 60, "there is room again")
        self.topic = name
        self.observer = self._observed()

    def flood_until_refused(self) -> Flood:
        flood = Flood(self.observer)
        flood.start()
        wait_until(lambda: flood.all_refused, 60, "producers are refused")
        return flood

    def flood_at_work(self) -> Flood:
        flood = Flood(self.observer)
        flood.start()
        wait_until(lambda: flood.acknowledged > 20, 60, "producers are at work")
        return flood

    def end(self, how: str) -> None:
        if how == "stopped":
            assert self.broker.stop() == 0
            self.observer.lost_something()
        elif how == "serve killed":
            self.broker.remember_members()
            os.kill(self.broker.pid, signal.SIGKILL)
            self.broker.process.wait(30)
            wait_until(lambda: not self.broker.leftovers(), 30, "nothing runs any more")
            self.observer.lost_something()
            self.broker.stop()
        else:
            pid = self.broker.kill("store")
            time.sleep(0.05)  # for what was acknowledged to arrive
            self.observer.lost_something()
            self.broker.wait_restarted("store", 0, pid)

    def start_again(self) -> None:
        if self.broker.process.poll() is not None:
            port, data_dir = self.broker.port, self.broker.data_dir
            self.broker = self._start(workers=2, port=port, data_dir=data_dir, **self._options)
            self._logs.add(self.broker.directory / "log")
        until_answered(self.ports, self.topic)

    def disk_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.broker.status()["store"]["disk"]
        return facts

    def said(self) -> str:
        return "".join(log.read_text() for log in self._logs)

    def must_not_have_said(self, unsaid: str) -> None:
        assert unsaid not in self.said(), self.said()

    def epochs(self) -> int:
        url = self.broker.store_url
        return sum(len(read_epochs(url, self.topic, each)) for each in range(PARTITIONS))


STORM_ROUNDS = 25
HOW = ["stopped", "serve killed", "store killed"]


@pytest.mark.parametrize("how", HOW)
def test_what_was_acknowledged_is_there_after_the_disk_was_full(
    start_moldau: Start, disk: SmallDisk, how: str
) -> None:
    disk.fill(leave=24 * MIB)
    scene = Scene(start_moldau, disk)
    flood = scene.flood_until_refused()
    wait_until(lambda: scene.disk_facts()["refuses_writes"], 30, "the supervisor has noticed")
    flood.stop()
    scene.end(how)
    disk.make_room()
    scene.start_again()
    scene.observer.check(scene.broker.store_url, may_lose=False)
    assert scene.epochs() == 0
    scene.must_not_have_said("Traceback")
    assert "THE DISK of" in scene.said()


@pytest.mark.parametrize("how", HOW)
def test_an_end_at_any_moment_gives_no_offset_out_again(
    start_moldau: Start, disk: SmallDisk, how: str
) -> None:
    """The same without waiting for anything, while another program takes all that is left; and it
    starts again before there is room, for those who read."""
    disk.fill(leave=24 * MIB)
    scene = Scene(start_moldau, disk)
    flood = scene.flood_until_refused()
    disk.fill()
    scene.end(how)
    before = flood.acknowledged
    scene.start_again()
    disk.make_room()
    wait_until(lambda: flood.acknowledged > before, 60, "producers go on")
    flood.stop()
    scene.observer.check(scene.broker.store_url, may_lose=scene.epochs() > 0)
    scene.must_not_have_said("Traceback")


def test_with_an_fsync_of_every_write_the_same_holds(start_moldau: Start, disk: SmallDisk) -> None:
    disk.fill(leave=16 * MIB)
    scene = Scene(start_moldau, disk, store_fsync="always")
    flood = scene.flood_until_refused()
    disk.fill()
    flood.stop()
    scene.end("serve killed")
    disk.make_room()
    scene.start_again()
    scene.observer.check(scene.broker.store_url, may_lose=False)
    assert scene.epochs() == 0


def test_producers_go_on_when_there_is_room_again(start_moldau: Start, disk: SmallDisk) -> None:
    disk.fill(leave=24 * MIB)
    scene = Scene(start_moldau, disk)
    flood = scene.flood_until_refused()
    wait_until(lambda: scene.disk_facts()["refuses_writes"], 30, "the supervisor has noticed")
    disk.fill()
    assert disk.free == 0
    assert scene.observer.look(), "reads go on"
    before = flood.acknowledged
    disk.make_room()
    wait_until(lambda: flood.acknowledged > before, 60, "producers go on")
    flood.stop()
    scene.observer.check(scene.broker.store_url, may_lose=False)
    assert scene.epochs() == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_disk_that_fills_up_again_and_again(start_moldau: Start, disk: SmallDisk) -> None:
    """Producers at full speed, another program that takes all the room, ends at random moments.

    Topics are deleted, and the file is rewritten in what room there is.
    """
    chance = random.Random(25)
    scene = Scene(start_moldau, disk)
    for number in range(STORM_ROUNDS):
        scene.next_topic(f"round{number}")
        scene.observer.watch()
        flood = scene.flood_at_work()
        filler = threading.Thread(target=disk.fill)
        time.sleep(chance.random() * 0.3)
        filler.start()
        time.sleep(chance.random() * 0.6)
        how = chance.choice(HOW)
        scene.end(how)
        filler.join()
        if chance.random() < 0.5:
            disk.make_room()
        flood.stop()
        scene.start_again()
        disk.make_room()
        scene.observer.stop_watching()
        scene.observer.check(scene.broker.store_url, may_lose=scene.epochs() > 0)
        scene.must_not_have_said("Traceback")
