"""A failover between the batches of an idempotent producer: each record is in the log once.

Some batches are in the log although their producer got an error, others failed and are not, and
later ones of theirs are queued. A producer that is made to begin a new epoch then would send what
is in the log again, as something new: librdkafka does that, for every partition, when it gets
OUT_OF_ORDER_SEQUENCE_NUMBER for a batch behind one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic, read_all
from tests.support.raw.client import RawClient
from tests.support.stores.lossy import StorePair, programs
from tests.support.stores.proxy import Link

Start = Callable[..., Broker]
TOPIC = "orders"
KEPT, LOST = 0, 1  # partitions
PATIENCE_S = 30.0
BACKOFF_MS = 2_000  # all errors have arrived before anything is sent again


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[StorePair]:
    with StorePair(tmp_path, programs()["valkey"]) as made:
        yield made


class Sender:
    """An idempotent producer; each record is a batch."""

    def __init__(self, broker: Broker) -> None:
        self._failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": BACKOFF_MS,
                "retry.backoff.max.ms": BACKOFF_MS,
                "log_level": 2,
            }
        )

    def send(self, value: bytes, partition: int) -> None:
        self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(str(error))

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._failed


class Worker:
    """The connections of the only worker to the store, by what they carry."""

    def __init__(self, pair: StorePair) -> None:
        self._pair = pair

    def link(self, what: str) -> Link:
        (link,) = (each for each in self._pair.proxy.links() if each.name == f"moldau-0-{what}")
        return link

    def hold_replies(self, *links: str) -> None:
        for what in links:
            self._pair.proxy.call(self.link(what).replies.hold)


def test_no_record_is_stored_twice(pair: StorePair, start_moldau: Start) -> None:
    broker = start_moldau(redis=pair.url, workers=1)
    with RawClient(broker.port) as raw:
        create_topic(raw, TOPIC, partitions=2)
    sender = Sender(broker)
    for partition in (KEPT, LOST):
        sender.send(b"first", partition)
    sender.flush()
    worker = Worker(pair)

    def until_stored(partition: int, entries: int) -> None:
        with pair.master.client() as store:
            key = f"moldau:{TOPIC}:{partition}"
            wait_until(lambda: store.xlen(key) == entries, PATIENCE_S, f"{key} has {entries}")

    # In the log of both servers. Its producer does not get to know: nor does it that the replica
    # has left, soon.
    worker.hold_replies("replicated", "control")
    sender.send(b"kept", KEPT)
    until_stored(KEPT, 2)
    pair.stop_replica(unlink=True)
    # In the log of the master alone, and waits for the replica ...
    replies = worker.link("bulk").replies
    before = replies.passed
    sender.send(b"lost", LOST)
    until_stored(LOST, 2)
    wait_until(lambda: replies.passed > before, PATIENCE_S, "the worker knows")
    # ... unlike the next one: whether that is in the log has to be found out.
    worker.hold_replies("bulk")
    sender.send(b"after", LOST)
    until_stored(LOST, 3)

    pair.kill_master()
    pair.promote()
    sender.flush()
    for partition in (KEPT, LOST):
        sender.send(b"last", partition)
    sender.flush()

    with RawClient(broker.port) as raw:
        found = [
            [record.value for record in read_all(raw, TOPIC, partition=partition)]
            for partition in (KEPT, LOST)
        ]
    assert found[KEPT] == [b"first", b"kept", b"last"]
    assert found[LOST] == [b"first", b"lost", b"after", b"last"]
