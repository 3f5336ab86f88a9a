"""A store that comes back empty under real producers and consumers, which go on by themselves.

Its topic is gone. The one that takes its name, by auto-creation, is another one and begins at 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.member_process import CLIENTS
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.load_clients import LOADS, Reader
from tests.support.proofs.observer import Observer
from tests.support.raw.calls import create_topic, read_all
from tests.support.raw.client import RawClient
from tests.support.stores.lossy import LossyStore, programs

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "orders", 2
SETTINGS = {"group.initial.rebalance.delay.ms": 100, "num.partitions": PARTITIONS}
PATIENCE_S = 60.0


class Recorder(Observer):
    """What was acknowledged and read since `begin`."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(ports, TOPIC, PARTITIONS)
        self.begin()

    def begin(self) -> None:
        with self._lock:
            self.stored: dict[tuple[int, int], bytes | None] = {}
            self._got: dict[str, set[bytes | None]] = {}

    def acknowledged(self, partition: int, offset: int, value: bytes | None) -> None:
        with self._lock:
            self.stored[partition, offset] = value

    def seen(self, partition: int, offset: int, value: bytes | None, source: str) -> None:
        with self._lock:
            self._got.setdefault(source, set()).add(value)

    def count_read(self, group: str) -> int:
        """Count the acknowledged records that a group reads."""
        with self._lock:
            return len(self._got.get(group, set()) & set(self.stored.values()))


@pytest.mark.slow
def test_clients_go_on_when_the_store_comes_back_empty(start_moldau: Start, tmp_path: Path) -> None:
    with (
        LossyStore(tmp_path / "store", programs()["valkey"]) as store,
        contextlib.ExitStack() as stack,
    ):
        broker = start_moldau(redis=store.url, workers=2, broker=SETTINGS)
        ports = worker_ports(broker)
        with RawClient(ports[0]) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)
        recorder = Recorder(ports)
        producers = [load(broker.bootstrap, recorder, name) for name, load in LOADS.items()]
        readers = [Reader(family, broker.bootstrap, recorder) for family in sorted(CLIENTS)]
        for producer in producers:
            stack.callback(producer.abandon)
        for reader in readers:
            stack.callback(reader.stop)

        def are_at_work() -> None:
            before = {one: one.acknowledged for one in producers}

            def progress() -> dict[str, int]:
                wrote = {one.name: one.acknowledged - before[one] for one in producers}
                return wrote | {one.group: recorder.count_read(one.group) for one in readers}

            try:
                wait_until(lambda: min(progress().values()) > 50, PATIENCE_S, "all are at work")
            except AssertionError as stuck:
                raise AssertionError(f"{stuck}: {progress()}\n{broker.log()[-4000:]}") from None

        are_at_work()
        store.kill()
        store.empty()
        store.start()
        recorder.begin()
        are_at_work()
        for producer in producers:
            producer.finish()

        for port in ports:
            with RawClient(port) as client:
                for partition in range(PARTITIONS):
                    records = read_all(client, TOPIC, partition=partition)
                    found = {record.offset: record.value for record in records}
                    assert sorted(found) == list(range(len(records)))
                    for (place, offset), value in recorder.stored.items():
                        if place == partition and offset >= 0:
                            assert found[offset] == value
        assert "Traceback" not in broker.log()
