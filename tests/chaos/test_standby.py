"""A standby takes over an external store: nothing acknowledged is lost, and one serves at a time.

Two hosts are two loopback addresses here. Both have the store, real processes and real clients,
which know both addresses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Self

import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Message, Producer

from moldau.broker.net.lease import LEASE_MS
from tests.support.brokers.running import Broker, free_ports, run_moldau, wait_until
from tests.support.brokers.standby import Host, Watch
from tests.support.raw.calls import create_topic, read_all
from tests.support.raw.client import RawClient
from tests.support.stores.proxy import ProxyThread
from tests.support.stores.redis_server import RedisServer, running_redis
from tests.support.stores.sentinel import Watched, watched_servers

Start = Callable[..., Broker]
TOPIC = "orders"
PARTITIONS = 3
PATIENCE_S = 60.0
ENOUGH = 100  # records that were acknowledged


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis", "--appendonly", "yes") as started:
        yield started


class Traffic:
    """An idempotent producer, and a group of two that reads what it sends."""

    def __init__(self, *hosts: Host) -> None:
        self._bootstrap = ",".join(host.bootstrap for host in hosts)
        self._stop = threading.Event()
        self.acknowledged: dict[str, tuple[int, int]] = {}  # value: partition, offset
        self.failed: list[str] = []
        self.read: set[str] = set()
        self._lock = threading.Lock()
        self._producing = threading.Thread(target=self._produce, daemon=True)
        self._reading = [threading.Thread(target=self._read, daemon=True) for _ in range(2)]

    def __enter__(self) -> Self:
        for thread in (self._producing, *self._reading):
            thread.start()
        self.until_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in (self._producing, *self._reading):
            thread.join()

    def until_more(self) -> None:
        """Until some more records are acknowledged, and read."""
        produced, read = len(self.acknowledged) + ENOUGH, len(self.read) + ENOUGH
        wait_until(
            lambda: bool(self.failed) or len(self.acknowledged) >= produced,
            PATIENCE_S,
            "more is acknowledged",
        )
        assert not self.failed, self.failed[:3]
        wait_until(lambda: len(self.read) >= read, PATIENCE_S, "more is read")

    def finish(self) -> None:
        """Nothing more is sent; everything that was acknowledged is read."""
        self._stop.set()
        self._producing.join()
        assert not self.failed, self.failed[:3]
        for thread in self._reading:
            thread.join()

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "log_level": 0,
            }
        )
        for number in count():
            if self._stop.wait(0.003):
                break
            value = f"value-{number}"
            producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            producer.poll(0)
        producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.failed.append(str(error))
        else:
            place = (message.partition(), message.offset())
            self.acknowledged[value.decode()] = place  # type: ignore[assignment]

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not (self._stop.is_set() and self._has_read_all()):
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                value = message.value()
                assert value is not None
                with self._lock:
                    self.read.add(value.decode())
        finally:
            consumer.close()

    def _has_read_all(self) -> bool:
        with self._lock:
            return not self._producing.is_alive() and self.acknowledged.keys() <= self.read


def make_topic(host: Host) -> None:
    with RawClient(host.broker.port + 1, host.address) as client:
        create_topic(client, TOPIC, partitions=PARTITIONS)


def prove(host: Host, traffic: Traffic) -> None:
    """What was acknowledged is in the log, where its producer was told, and nothing is twice."""
    found: dict[str, tuple[int, int]] = {}
    with RawClient(host.broker.port + 1, host.address) as client:
        for partition in range(PARTITIONS):
            for record in read_all(client, TOPIC, partition=partition):
                assert record.value is not None
                value = bytes(record.value).decode()
                assert value not in found, f"{value} is there twice"
                found[value] = (partition, record.offset)
    assert len(traffic.acknowledged) >= 2 * ENOUGH
    for value, place in traffic.acknowledged.items():
        partition, offset = found[value]
        # A duplicate of a batch whose answer was lost is acknowledged without an offset.
        assert place in ((partition, offset), (partition, None)), value
    assert traffic.acknowledged.keys() <= traffic.read


def two_hosts(start: Start, url: str) -> tuple[Host, Host]:
    first = Host(start, 1, url, workers=2)
    first.until_serving()
    second = Host(start, 2, url, workers=2)
    assert second.state == "standby"
    make_topic(first)
    return first, second


@pytest.mark.timeout(300)
def test_the_whole_first_host_is_killed(store: RedisServer, start_moldau: Start) -> None:
    first, second = two_hosts(start_moldau, store.url)
    with Watch(first, second) as watch, Traffic(first, second) as traffic:
        killed = time.monotonic()
        first.kill_everything()
        second.until_serving()
        print(f"killed, served again after {time.monotonic() - killed:.1f} s")
        traffic.until_more()
        traffic.finish()
    print(f"pause between answers {watch.prove_one_at_a_time():.1f} s")
    prove(second, traffic)


@pytest.mark.timeout(300)
def test_the_first_host_is_stopped_in_order(store: RedisServer, start_moldau: Start) -> None:
    first, second = two_hosts(start_moldau, store.url)
    with Watch(first, second) as watch, Traffic(first, second) as traffic:
        asked = time.monotonic()
        assert first.broker.stop() == 0
        second.until_serving()
        print(f"SIGTERM, served again after {time.monotonic() - asked:.1f} s")
        traffic.until_more()
        traffic.finish()
    print(f"pause between answers {watch.prove_one_at_a_time():.1f} s")
    prove(second, traffic)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_the_first_host_is_cut_off_from_the_store(
    how: str, store: RedisServer, start_moldau: Start
) -> None:
    with ProxyThread(store.port, lambda link: None) as proxy:
        first = Host(start_moldau, 1, f"redis://127.0.0.1:{proxy.port}", workers=2)
        first.until_serving()
        second = Host(start_moldau, 2, store.url, workers=2)
        make_topic(first)
        with Watch(first, second) as watch, Traffic(first, second) as traffic:
            if how == "refused":
                proxy.refuse()
            else:
                proxy.fall_silent()
            second.until_serving()
            assert first.state == "running"  # it may be served again, if nobody took over
            traffic.until_more()
            # What it had sent arrives late, and it finds another broker there.
            proxy.speak_again()
            proxy.point_at(store.port, cut=False)
            first.until("standby")
            traffic.until_more()
            traffic.finish()
        print(f"pause between answers {watch.prove_one_at_a_time():.1f} s")
        assert first.lease["holder"]["port"] == second.broker.port
        prove(second, traffic)


@pytest.mark.timeout(300)
def test_the_first_host_is_stopped_by_a_signal_and_goes_on(
    store: RedisServer, start_moldau: Start
) -> None:
    first, second = two_hosts(start_moldau, store.url)
    with Watch(first, second) as watch, Traffic(first, second) as traffic:
        with first.stopped():
            second.until_serving()
            traffic.until_more()
        first.until("standby")
        traffic.until_more()
        traffic.finish()
    watch.prove_one_at_a_time()
    prove(second, traffic)


@pytest.mark.timeout(300)
def test_workers_give_up_while_their_supervisor_is_stopped(
    store: RedisServer, start_moldau: Start
) -> None:
    with ProxyThread(store.port, lambda link: None) as proxy:
        first = Host(start_moldau, 1, f"redis://127.0.0.1:{proxy.port}", workers=2)
        first.until_serving()
        second = Host(start_moldau, 2, store.url, workers=1)
        with Watch(first, second) as watch:
            supervisor = first.processes()[0]
            supervisor.suspend()
            try:
                wait_until(lambda: watch.answered(0) > 200, PATIENCE_S, "it serves all the same")
                assert second.state == "standby"
                proxy.refuse()
                second.until_serving()
                wait_until(lambda: watch.answered(1) > 20, PATIENCE_S, "the second one answers")
            finally:
                supervisor.resume()
            proxy.point_at(store.port, cut=False)
            first.until("standby")
        watch.prove_one_at_a_time()


@pytest.mark.timeout(300)
def test_of_two_standbys_one_takes_over(store: RedisServer, start_moldau: Start) -> None:
    first = Host(start_moldau, 1, store.url, workers=1)
    first.until_serving()
    others = [Host(start_moldau, number, store.url, workers=1) for number in (2, 3)]
    first.kill_everything()

    def states() -> list[str]:
        return sorted(host.state for host in others)

    wait_until(lambda: states() == ["running", "standby"], PATIENCE_S, "one of them serves")
    (serving,) = (host for host in others if host.state == "running")
    (waiting,) = (host for host in others if host is not serving)
    port = serving.broker.port
    wait_until(lambda: waiting.lease["holder"]["port"] == port, PATIENCE_S, "the other one sees it")
    assert serving.broker.stop() == 0
    waiting.until_serving()


def said(broker: Broker, what: str) -> bool:
    """Whether both workers have said it."""
    return all(f"worker-{n} moldau.worker: {what}" in broker.log() for n in (0, 1))


@pytest.mark.timeout(300)
def test_a_store_that_is_away_for_longer_than_the_lease(
    store: RedisServer, start_moldau: Start
) -> None:
    """Without a standby the same processes go on, and clients come back to them."""
    with ProxyThread(store.port, lambda link: None) as proxy:
        broker = start_moldau(workers=2, redis=f"redis://127.0.0.1:{proxy.port}")
        workers = broker.pids("worker")
        with RawClient(broker.port + 1) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)
            proxy.refuse()
            wait_until(lambda: said(broker, "clients are cut off"), PATIENCE_S, "they are cut")
            client.must_be_closed()
        with RawClient(broker.port + 1) as client:
            client.must_be_closed()
        proxy.point_at(store.port, cut=False)
        wait_until(lambda: said(broker, "clients are served again"), PATIENCE_S, "served again")
        with RawClient(broker.port + 1) as client:
            assert read_all(client, TOPIC) == []
        assert broker.pids("worker") == workers


@pytest.mark.timeout(300)
def test_an_old_master_that_nobody_can_write_to_is_no_store_to_serve(
    store: RedisServer, tmp_path: Path, start_moldau: Start
) -> None:
    """The first host and the old master are on one side of a network that broke, the standby and
    the new master on the other. Clients reach both."""
    with (
        running_redis(tmp_path / "new", "--replicaof", "127.0.0.1", str(store.port)) as new,
        redis.from_url(store.url) as master,
        redis.from_url(new.url) as replica,
        ProxyThread(store.port, lambda link: None) as proxy,
    ):
        wait_until(lambda: master.wait(1, 1000) == 1, PATIENCE_S, "the replica follows")
        master.config_set("min-replicas-max-lag", 2)
        master.config_set("min-replicas-to-write", 1)
        first = Host(start_moldau, 1, store.url, workers=2)
        first.until_serving()
        second = Host(start_moldau, 2, f"redis://127.0.0.1:{proxy.port}", workers=2)
        wait_until(lambda: second.lease["holder"] is not None, PATIENCE_S, "it waits")
        with Watch(first, second) as watch:
            wait_until(lambda: watch.answered(0) > 0, PATIENCE_S, "the first one answers")
            replica.execute_command("REPLICAOF", "NO", "ONE")
            proxy.point_at(new.port)
            wait_until(
                lambda: said(first.broker, "clients are cut off"), PATIENCE_S, "it is cut off"
            )
            second.until_serving()
            time.sleep(2 * LEASE_MS / 1000)  # nobody asks the old master for a lease meanwhile
            assert watch.answered(1) > 0
        watch.prove_one_at_a_time()
        assert "clients are served again" not in first.broker.log()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watched_servers(tmp_path / "redis", sentinels=3) as servers:
        yield servers


@pytest.mark.timeout(300)
def test_the_store_fails_over_and_loses_the_lease(watched: Watched, start_moldau: Start) -> None:
    """The holder keeps it, although the new master knows of none and somebody waits."""
    first, second = two_hosts(start_moldau, watched.url)
    with Watch(first, second) as watch, Traffic(first, second) as traffic:
        (replica,) = watched.replicas()
        former = watched.kill_master()
        watched.wait_for_another(former)
        with watched.client(replica.port) as client:
            client.delete("moldau:lease", "moldau:serving")
        traffic.until_more()
        assert (first.state, second.state) == ("running", "standby")
        assert watch.answered(1) == 0
        first.kill_everything()
        second.until_serving()
        traffic.until_more()
        traffic.finish()
    watch.prove_one_at_a_time()
    prove(second, traffic)


def test_a_second_broker_is_refused_as_soon_as_the_first_is_seen_alive(
    store: RedisServer, start_moldau: Start
) -> None:
    first = start_moldau(workers=1, redis=store.url)
    refused = run_moldau(
        "serve", "--redis", store.url, "--port", str(free_ports(3)), "--workers", "1"
    )
    assert refused.returncode == 3, refused.stderr
    assert f"process {first.pid} on " in refused.stderr
    assert f"port {first.port}" in refused.stderr
    assert "--standby" in refused.stderr
