"""A broker on servers under Sentinel: clients go on by themselves when the master changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.brokers.running import Broker, wait_until
from tests.support.stores.sentinel import Watched, watched_servers

Start = Callable[..., Broker]
PATIENCE_S = 60
PARTITIONS = 4


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A former master without replicas takes no more writes: what is acknowledged is on both."""
    options = ("--min-replicas-to-write", "1")
    with watched_servers(
        tmp_path / "redis", sentinels=3, password="s3cret", options=options
    ) as servers:
        yield servers


class Readers:
    """A consumer of a group, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: list[bytes] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    value = message.value()
                    assert value is not None
                    self.seen.append(value)
        finally:
            consumer.close()


class Writer:
    """A producer whose every record must arrive."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": PATIENCE_S * 1000,
                "linger.ms": 5,
            }
        )
        self.values: list[bytes] = []
        self.faults: list[str] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.values)
            self.values.append(value)
            self._producer.produce(self._topic, value, on_delivery=self._delivered)

    def _delivered(self, error: object, _: Message) -> None:
        if error is not None:
            self.faults.append(str(error))

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0, "not all are acknowledged"
        assert self.faults == []


def test_clients_go_on_through_failovers(start_moldau: Start, watched: Watched) -> None:
    broker = start_moldau(redis=watched.url, workers=2)
    assert "s3cret" not in broker.ready_line
    assert ":***@" in broker.status()["store"]["url"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic("safe", PARTITIONS, 1, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["safe"].result(PATIENCE_S)
    writer = Writer(broker.bootstrap, "safe")
    with Readers(broker.bootstrap, "safe") as readers:

        def all_are_read() -> bool:
            return set(readers.seen) >= set(writer.values)

        def disturb(change: Callable[[], None]) -> None:
            writer.write(200)
            writer.flush()
            wait_until(all_are_read, PATIENCE_S, "all are read before")
            wait_until(watched.caught_up, PATIENCE_S, "the replica has everything")
            change()
            writer.write(200)
            writer.flush()
            wait_until(all_are_read, PATIENCE_S, "all are read after")

        def plan() -> None:
            watched.fail_over()

        def kill() -> None:
            killed = watched.kill_master()
            writer.write(50)  # while there is no master at all
            watched.wait_for_another(killed)
            watched.start_again(killed)

        began = time.monotonic()
        for change in (plan, kill):
            disturb(change)
        print(f"both failovers in {time.monotonic() - began:.1f} s")
    values = sorted(int(value) for value in readers.seen)
    assert values == sorted(set(values)), "committed offsets were lost: records came twice"
    log = broker.log()
    assert "s3cret" not in log
    assert "Traceback" not in log
