"""A store that loses its tail under real producers and consumers, which go on by themselves.

librdkafka (idempotent, and acks=1), kafka-python and aiokafka produce and consume in groups all the
while. No client gets an error it cannot deal with, no offset names two records, and every record
that is left, or was produced after the loss, reaches every group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.member_process import CLIENTS
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.load_clients import LOADS, CommitWatch, Load, Reader
from tests.support.proofs.observer import Observer, View
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import RawMember, coordinator_port, fetch_offsets
from tests.support.stores.lossy import programs
from tests.support.stores.stages import STAGES, Stage

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "orders", 2
QUICK = {"group.initial.rebalance.delay.ms": 100}
SERVERS = sorted(programs())


class Traffic:
    """Clients of some families at a broker on a stage."""

    def __init__(self, start: Start, stage: Stage, loads: Sequence[str]) -> None:
        self._start = start
        self._stage = stage
        self.broker = start(redis=stage.url, workers=2, broker=QUICK)
        self.ports = worker_ports(self.broker)
        with RawClient(self.ports[0]) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)
        self.observer = Observer(self.ports, TOPIC, PARTITIONS)
        self._loads = list(loads)
        families = sorted({load.removesuffix("_leader") for load in loads} & set(CLIENTS))
        self.producers: list[Load] = []
        self.readers: list[Reader] = []
        self._families = families
        self._commits: CommitWatch | None = None
        self._committed: dict[str, dict[int, int]] = {}

    def begin(self) -> None:
        self.observer.watch()
        bootstrap = self.broker.bootstrap
        self.producers = [LOADS[load](bootstrap, self.observer, load) for load in self._loads]
        self.readers = [Reader(family, bootstrap, self.observer) for family in self._families]
        self._commits = CommitWatch(
            self.broker, self.observer, [reader.group for reader in self.readers]
        )
        wait_until(
            lambda: (
                all(producer.acknowledged > 50 for producer in self.producers)
                and all(reader.has_read_something() for reader in self.readers)
            ),
            60,
            "all clients are at work",
        )

    def strike(self, seconds: float) -> None:
        """Lose what is acknowledged within so many seconds, and see that clients go on."""
        self._stage.prepare()
        time.sleep(seconds)
        self._stage.strike(self.observer.lost_something)
        before = {producer: producer.acknowledged for producer in self.producers}
        try:
            wait_until(
                lambda: all(producer.acknowledged > before[producer] + 50 for producer in before),
                60,
                "producers go on",
            )
        except AssertionError as stuck:
            went_on = {one.prefix: (one.acknowledged - before[one], one.failed) for one in before}
            raise AssertionError(f"{stuck}: {went_on}\n{self.broker.log()[-4000:]}") from None
        time.sleep(1)

    def finish(self) -> list[View]:
        for producer in self.producers:
            producer.finish()
        views = self.check()
        for reader in self.readers:
            reader.finish(views)
        assert self._commits is not None
        self._committed = self._commits.stop(self._stage.url)
        self.observer.stop_watching()
        self.check()
        return views

    def check(self) -> list[View]:
        """The proof; and what groups have committed is still so."""
        for group, newest in self._committed.items():
            with RawMember(coordinator_port(self.broker, group), group) as member:
                found = fetch_offsets(member, group, {TOPIC: list(range(PARTITIONS))})
            for (_, partition), offset in found.items():
                assert offset >= newest.get(partition, -1), f"{group} {partition}: {offset}"
        return self.observer.check(self._stage.url, may_lose=self._stage.loses)

    def restart(self, *, kill: bool) -> None:
        if kill:
            self.broker.kill_everything()
            self.broker.stop()
        else:
            assert self.broker.stop() == 0
        assert "Traceback" not in self.broker.log()
        self.broker = self._start(
            redis=self._stage.url, workers=2, broker=QUICK, port=self.broker.port
        )

    def abandon(self) -> None:
        """Stop every client, in case the test failed."""
        for producer in self.producers:
            producer.abandon()
        for reader in self.readers:
            reader.stop()
        if self._commits is not None:
            self._commits.told.set()
        self.observer.stop_watching()


def run(
    start: Start, directory: Path, server: str, name: str, loads: Sequence[str], strikes: int = 1
) -> None:
    with STAGES[name](directory, programs()[server]) as stage, contextlib.ExitStack() as stack:
        traffic = Traffic(start, stage, loads)
        stack.callback(traffic.abandon)
        traffic.begin()
        for number in range(strikes):
            if number:
                stage.recover()
            traffic.strike(1.0)
        views = traffic.finish()
        if name == "killed" or not stage.loses:
            assert traffic.observer.count() <= sum(len(view.records) for view in views)
        for kill in (False, True):
            traffic.restart(kill=kill)
            assert traffic.check() == views
            assert "Traceback" not in traffic.broker.log()


@pytest.mark.parametrize("name", ["cut", "lagging"])
def test_clients_go_on_when_the_store_loses_its_tail(
    start_moldau: Start, tmp_path: Path, name: str
) -> None:
    run(start_moldau, tmp_path, "valkey", name, sorted(LOADS))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", sorted(STAGES))
def test_clients_go_on_whatever_becomes_of_the_store(
    start_moldau: Start, tmp_path: Path, server: str, name: str
) -> None:
    run(start_moldau, tmp_path, server, name, sorted(LOADS), strikes=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("load", sorted(LOADS))
@pytest.mark.parametrize("name", ["torn", "older", "lagging"])
def test_a_family_alone(start_moldau: Start, tmp_path: Path, load: str, name: str) -> None:
    run(start_moldau, tmp_path, SERVERS[0], name, [load], strikes=3)
