"""acks=all on a store with a replica: any one of the two may die, nothing acknowledged is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.proofs.load_clients import ConfluentLoad, KafkaPythonLoad
from tests.support.proofs.observed_producer import ObservedProducer
from tests.support.proofs.observer import RETRIABLE, Observer, until_answered
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.stores.lossy import StorePair, programs
from tests.support.stores.stages import DRAIN_S

Start = Callable[..., Broker]
TOPIC = "orders"
SERVERS = sorted(programs())
LARGE = 900_000  # bytes: more of them than sockets hold for a replica that is stopped


@pytest.fixture(params=["valkey"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StorePair]:
    with StorePair(tmp_path, programs()[request.param]) as made:
        yield made


def serve(start: Start, pair: StorePair, replicas: int | None) -> tuple[Broker, Observer]:
    broker = start(redis=pair.url, workers=2)
    ports = worker_ports(broker)
    configs = {} if replicas is None else {"min.insync.replicas": replicas}
    with RawClient(ports[0]) as client:
        create_topic(client, TOPIC, configs)
    return broker, Observer(ports, TOPIC)


def check_again(start: Start, pair: StorePair, broker: Broker, observer: Observer) -> None:
    """The proof, and once more after a restart."""
    views = observer.check(pair.url, may_lose=False)
    assert broker.stop() == 0
    start(redis=pair.url, workers=2, port=broker.port)
    assert observer.check(pair.url, may_lose=False) == views


@pytest.mark.parametrize("replicas", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_master_dies_beside_a_healthy_replica(
    pair: StorePair, start_moldau: Start, replicas: int | None
) -> None:
    broker, observer = serve(start_moldau, pair, replicas)
    loads = [
        ConfluentLoad(broker.bootstrap, observer, "confluent"),
        KafkaPythonLoad(broker.bootstrap, observer, "kafka_python"),
    ]
    try:
        for _ in range(2):
            before = observer.count()
            wait_until(lambda before=before: observer.count() > before + 500, 60, "they go on")  # type: ignore[misc]
            pair.kill_master()
            time.sleep(DRAIN_S)
            pair.promote()
            pair.rejoin()
        before = observer.count()
        wait_until(lambda: observer.count() > before + 200, 60, "they go on")
        for load in loads:
            load.finish()
    finally:
        for load in loads:
            load.abandon()
    check_again(start_moldau, pair, broker, observer)


@pytest.mark.parametrize("replicas", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_nothing_is_acknowledged_that_only_the_master_has(
    pair: StorePair, start_moldau: Start, replicas: int | None
) -> None:
    """The replica hangs, and the master takes it for online; then the master dies."""
    broker, observer = serve(start_moldau, pair, replicas)
    ports = observer.ports
    for port in ports:
        ObservedProducer(observer, f"before-{port}").send(port, 10)
    pair.stop_replica(unlink=False)
    acknowledged = observer.count()

    def send(number: int) -> ErrorCode:
        producer = ObservedProducer(observer, f"large-{number}")
        return producer.send_once(ports[number % 2], 1, size=LARGE)

    with ThreadPoolExecutor(16) as pool:
        codes = set(pool.map(send, range(16)))
        assert codes <= RETRIABLE, codes
    assert observer.count() == acknowledged

    pair.kill_master()
    time.sleep(DRAIN_S)
    pair.promote()
    pair.rejoin()
    until_answered(ports, TOPIC)
    for port in ports:
        ObservedProducer(observer, f"after-{port}").send(port, 5)
    check_again(start_moldau, pair, broker, observer)


def test_acks_1_may_lose_what_no_replica_had(pair: StorePair, start_moldau: Start) -> None:
    """And says so: in a gap of the log, not in another record's place."""
    _, observer = serve(start_moldau, pair, None)
    ports = observer.ports
    producer = ObservedProducer(observer, "leader")
    for port in ports:
        producer.send(port, 10)
    pair.stop_replica(unlink=False)
    for number in range(16):
        producer.send(ports[number % 2], 1, size=LARGE, acks=1)
    pair.kill_master()
    time.sleep(DRAIN_S)
    observer.lost_something()
    pair.promote()
    until_answered(ports, TOPIC)
    for port in ports:
        producer.send(port, 5, acks=1)
    (view,) = observer.check(pair.url)
    assert len(view.records) < observer.count(), "nothing was lost: the test is no test"
