"""The router from outside: what clients notice when workers and routers die or are stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.list_groups import ListGroupsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.support.brokers.routed import (
    NAMED,
    NOT_AVAILABLE,
    UNKNOWN_MEMBER,
    Start,
    batch,
    fetch_of,
    led_by,
    new_topic,
    owned_by,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient, records_in

pytestmark = pytest.mark.usefixtures("fresh_processes")

# --- deaths ---


def test_while_a_worker_is_down_its_groups_are_unavailable_and_the_rest_is_served(
    start_moldau: Start,
) -> None:
    broker = start_moldau(workers=2, advertise="router")
    topic = new_topic(broker)
    mine, others = owned_by(0), owned_by(1)
    with RawClient(broker.port) as waiting, RawClient(broker.port) as other:
        other.call(HeartbeatRequest(others, 1, "x"))
        waiting.send(fetch_of(topic, led_by(topic, 0), wait_ms=60_000), NAMED)
        assert other.call(HeartbeatRequest(mine, 1, "x")).error_code == UNKNOWN_MEMBER
        old = broker.pids("worker")[0]
        broker.kill("supervisor", number=signal.SIGSTOP)  # or it is up again at once
        os.kill(old, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(ConnectionError):  # not left to wait for its timeout
            waiting.receive()
        assert time.monotonic() - begun < 50  # of the 60 s that a Fetch waits
        # In the moment before that, a request waits for the worker to come back.
        wait_until(lambda: "worker 0 is down" in broker.log(), 30, "the router knows")
        # A connection with no request to that worker goes on, though it has used it before.
        while other.call(HeartbeatRequest(mine, 1, "x")).error_code != NOT_AVAILABLE:
            assert time.monotonic() - begun < 50  # of the 60 s that a Fetch waits
        described = other.call(DescribeGroupsRequest([mine, others]), 5).groups
        assert [(each.group_id, each.error_code) for each in described] == [
            (mine, NOT_AVAILABLE),
            (others, 0),
        ]
        assert other.call(ListGroupsRequest()).error_code == NOT_AVAILABLE
        request = FindCoordinatorRequest(coordinator_keys=[mine, others])
        found = [(each.error_code, each.node_id) for each in other.call(request).coordinators]
        assert found == [(NOT_AVAILABLE, -1), (0, 0)]
        assert other.call(HeartbeatRequest(others, 1, "x")).error_code == UNKNOWN_MEMBER
        # Partitions it leads are served by the other worker.
        assert other.produce(topic, batch(b"x"), partition=led_by(topic, 0)).error_code == 0
        broker.process.send_signal(signal.SIGCONT)
        broker.wait_restarted("worker", 0, old)

        def is_served() -> bool:
            return bool(other.call(HeartbeatRequest(mine, 1, "x")).error_code == UNKNOWN_MEMBER)

        wait_until(is_served, 30, "the group is served again")


def test_a_killed_router_is_back_and_the_other_went_on(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, routers=2)
    other = broker.pids("router")[1]
    old = broker.kill("router", 0)
    broker.wait_restarted("router", 0, old)
    routers = broker.processes("router")
    assert routers[0]["restarts"] == 1
    assert (routers[1]["pid"], routers[1]["restarts"]) == (other, 0)
    for _ in range(20):
        with RawClient(broker.port) as client:
            assert client.call(MetadataRequest([])).brokers


@pytest.mark.slow
def test_a_router_that_hangs_is_replaced(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    old = broker.kill("router", 0, signal.SIGSTOP)
    broker.wait_restarted("router", 0, old)
    assert "router 0 hangs: killed" in broker.log()


def test_not_even_a_hanging_router_outlives_a_killed_supervisor(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, routers=2)
    with RawClient(broker.port) as client:
        client.call(MetadataRequest([]))
        broker.kill("router", 0, signal.SIGSTOP)
        broker.kill("supervisor")
        broker.process.wait(30)
        wait_until(lambda: not broker.leftovers(), 30, f"orphans are gone: {broker.leftovers()}")


def test_sighup_reaches_routers_and_they_serve_on(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    config = short_tmp_path / "moldau.toml"
    config.write_text("max-request-bytes = 1048576\n")
    broker = start_moldau(config=config, workers=2, routers=1, advertise="router")
    topic = new_topic(broker, 1)
    large = batch(bytes(600_000))
    with RawClient(broker.port) as client:
        assert client.produce(topic, large).error_code == 0
    old = broker.pids("router")
    config.write_text("max-request-bytes = 500000\n")
    broker.kill("supervisor", number=signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in broker.log(), 30, "it was reloaded")
    assert not set(old) & set(broker.pids("router"))
    with RawClient(broker.port) as client, pytest.raises(ConnectionError):
        client.produce(topic, large)
    with RawClient(broker.port) as client:  # what was acknowledged before is in the log
        assert len(records_in(client.fetch(topic, 0, max_bytes=1 << 20))) == 1


def test_parked_requests_get_their_replies_when_the_broker_stops(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, advertise="router")
    topic = new_topic(broker)
    with RawClient(broker.port) as client, RawClient(broker.port) as idle:
        assert idle.call(MetadataRequest([])).brokers
        client.send(fetch_of(topic, led_by(topic, 1), wait_ms=60_000), NAMED)
        client.send(MetadataRequest([]))
        time.sleep(0.2)  # so that it is parked; if it is not, it gets its reply all the same
        broker.process.terminate()
        (found,) = client.receive().responses[0].partitions
        assert found.error_code == 0
        assert type(client.receive()).__name__ == "MetadataResponse"
        idle.must_be_closed()
    assert broker.process.wait(30) == 0, broker.log()


def test_nothing_acknowledged_is_lost_while_routers_and_workers_die(start_moldau: Start) -> None:
    die_at_random(start_moldau(workers=2, routers=2, advertise="router"), seconds=8)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_a_minute_of_deaths(start_moldau: Start) -> None:
    die_at_random(start_moldau(workers=2, routers=2, advertise="router"), seconds=60)


def die_at_random(broker: Broker, seconds: float) -> None:
    topic = new_topic(broker, 4)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "delivery.timeout.ms": 120_000,
        }
    )
    acknowledged: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            acknowledged[message.partition()].append((message.offset(), message.value()))

    rng = random.Random(3)
    stop = threading.Event()
    killed: list[str] = []

    def kill() -> None:
        while not stop.wait(rng.uniform(0.4, 1.2)):
            role, index = rng.choice(("router", "worker")), rng.randrange(2)
            with contextlib.suppress(IndexError, ProcessLookupError):
                broker.kill(role, index)
                killed.append(role)

    killer = threading.Thread(target=kill)
    killer.start()
    reader = Reader(broker, topic)
    sent = 0
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        with contextlib.suppress(BufferError):
            producer.produce(topic, b"%08d" % sent, partition=sent % 4, on_delivery=delivered)
            sent += 1
        producer.poll(0)
        if sent % 50 == 0:
            time.sleep(0.005)
    stop.set()
    killer.join()
    assert producer.flush(120) == 0, broker.log()
    assert {"router", "worker"} <= set(killed)
    assert not failed
    assert sum(map(len, acknowledged)) == sent
    # A consumer that reads all the while sees each once, in order, at its acknowledged offset.
    assert reader.finish(sent) == [sorted(each) for each in acknowledged], reader.faults
    assert not reader.faults
    for partition in range(4):
        stored = read_all(broker, topic, partition, len(acknowledged[partition]))
        # Once each, at the acknowledged offset, in the order in which they were sent.
        assert stored == sorted(acknowledged[partition])
        assert [value for _, value in stored] == sorted(value for _, value in stored)


class Reader:
    """Consumes four partitions from their start (assign), in a thread of its own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.found: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]
        self.faults: list[Any] = []
        self._wanted: int | None = None  # until it is known: read on
        self._deadline = float("inf")
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "assigned",
                "enable.auto.commit": False,
                # An offset out of range is an error, not a reason to begin elsewhere.
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while self._wanted is None or sum(map(len, self.found)) < self._wanted:
            if time.monotonic() > self._deadline:
                return
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error: Any = message.error()
            if error is None:
                record: Any = message
                self.found[record.partition()].append((record.offset(), record.value()))
            elif error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                self.faults.append(error)

    def finish(self, count: int) -> list[list[tuple[int, bytes]]]:
        """What it has read once that is `count` records."""
        self._deadline = time.monotonic() + 60
        self._wanted = count
        self._thread.join()
        self._consumer.close()
        return self.found


def read_all(broker: Broker, topic: str, partition: int, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        try:
            with RawClient(broker.port) as client:
                while True:
                    answer = client.fetch(topic, len(found), partition=partition)
                    assert answer.error_code in (0, 6), answer
                    records = records_in(answer)
                    fresh = [one for one in records if one.offset >= len(found)]
                    if not fresh and len(found) >= count:
                        return found
                    found += [(one.offset, bytes(one.value or b"")) for one in fresh]
        except (ConnectionError, TimeoutError):
            time.sleep(0.1)
