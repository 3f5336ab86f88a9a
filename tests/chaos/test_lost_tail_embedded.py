"""The embedded store: what `kill -9` leaves is whole, and costs no epoch; a file cut short does.

Its writes are in the kernel before they are acknowledged, so nothing is lost when every process is
killed. A crash of the machine can take the end of the file: here the file is cut.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.observed_producer import ObservedProducer, new_producer_id
from tests.support.proofs.observer import Observer, read_epochs, until_answered
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.stores.lossy import newest_file

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "orders", 1
NOTED_S = 3.0  # the supervisor notes how long the file is at least every second


class Scene:
    def __init__(self, start: Start) -> None:
        self._start = start
        self.broker = start(workers=2)
        self.ports = worker_ports(self.broker)
        with RawClient(self.ports[0]) as client:
            create_topic(client, TOPIC)
        self.observer = Observer(self.ports, TOPIC)
        self.ids = [new_producer_id(port) for port in self.ports]
        self.one = ObservedProducer(self.observer, "one", self.ids[0])
        self.plain = ObservedProducer(self.observer, "plain")

    @property
    def file(self) -> Path:
        return newest_file(self.broker.data_dir / "store")

    def produce(self) -> None:
        for port in self.ports:
            for producer in (self.one, self.plain):
                producer.send(port, 5)

    def start_again(self) -> None:
        assert "Traceback" not in self.broker.log()
        port, data_dir = self.broker.port, self.broker.data_dir
        self.broker = self._start(workers=2, port=port, data_dir=data_dir)

    def kill_everything(self) -> None:
        self.broker.remember_members()
        for process in self.broker.status()["processes"]:
            if process["role"] != "supervisor":
                os.kill(process["pid"], signal.SIGSTOP)  # none notices that others die
        self.broker.kill_everything()
        self.broker.stop()

    def check(self, *, epochs: int) -> None:
        until_answered(self.ports, TOPIC)
        self.ids += [new_producer_id(port) for port in self.ports]
        assert len(set(self.ids)) == len(self.ids), self.ids
        self.observer.check(self.broker.store_url, may_lose=epochs > 0)
        assert len(read_epochs(self.broker.store_url, TOPIC, 0)) == epochs


def test_kill_9_with_the_file_intact_spends_no_epoch(start_moldau: Start) -> None:
    scene = Scene(start_moldau)
    scene.produce()
    pid = scene.broker.kill("store")
    scene.broker.wait_restarted("store", 0, pid)
    scene.check(epochs=0)
    scene.produce()
    scene.kill_everything()
    scene.start_again()
    scene.check(epochs=0)
    scene.produce()
    assert scene.broker.stop() == 0
    scene.start_again()
    scene.produce()
    scene.check(epochs=0)


@pytest.mark.parametrize("workers_live", [False, True])
def test_a_file_that_was_cut_begins_an_epoch(start_moldau: Start, workers_live: bool) -> None:
    scene = Scene(start_moldau)
    scene.produce()
    file, size = scene.file, scene.file.stat().st_size
    scene.produce()
    time.sleep(NOTED_S)
    if workers_live:
        store = scene.broker.pids("store")[0]
        scene.broker.kill("supervisor", number=signal.SIGSTOP)  # until the file is cut
        os.kill(store, signal.SIGKILL)
        time.sleep(0.5)
        scene.observer.lost_something()
        os.truncate(file, size)
        scene.broker.kill("supervisor", number=signal.SIGCONT)
        scene.broker.wait_restarted("store", 0, store)
    else:
        scene.kill_everything()
        scene.observer.lost_something()
        os.truncate(file, size)
        scene.start_again()
    scene.check(epochs=1)
    scene.one.again(scene.ports[0])
    scene.produce()
    scene.check(epochs=1)
    assert scene.broker.stop() == 0
    scene.start_again()
    scene.produce()
    scene.check(epochs=1)
