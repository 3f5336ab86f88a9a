"""Consumers see what every replica of the store has: no failover takes it back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.brokers.running import Broker, wait_until
from tests.support.stores.lossy import StorePair, programs

Start = Callable[..., Broker]
TOPIC = "orders"


@pytest.fixture(params=sorted(programs()))
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StorePair]:
    with StorePair(tmp_path, programs()[request.param]) as made:
        yield made


def produce(broker: Broker, value: bytes, acks: str) -> bool:
    """Was it acknowledged?"""
    acknowledged: list[bool] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "message.timeout.ms": 3000,
        }
    )
    producer.produce(TOPIC, value, partition=0, on_delivery=lambda e, _: acknowledged.append(not e))
    producer.flush(10)
    (outcome,) = acknowledged
    return outcome


def test_consumers_see_what_every_replica_has(pair: StorePair, start_moldau: Start) -> None:
    broker = start_moldau(redis=pair.url, workers=2)
    assert produce(broker, b"both", "all")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    place = TopicPartition(TOPIC, 0, 0)
    consumer.assign([place])
    try:
        found = consumer.poll(10)
        assert found is not None
        assert found.value() == b"both"

        pair.replica.signal(signal.SIGSTOP)
        assert produce(broker, b"master only", "1")
        assert not produce(broker, b"master only, and never acknowledged", "all")
        assert consumer.get_watermark_offsets(place, 5) == (0, 1)
        assert consumer.poll(1) is None

        pair.replica.signal(signal.SIGCONT)
        seen: list[bytes | None] = []

        def all_there() -> bool:
            if (record := consumer.poll(0.1)) is not None:
                seen.append(record.value())
            return len(seen) >= 2

        wait_until(all_there, 30, "the replica has them")
        assert seen[0] == b"master only"
        assert consumer.get_watermark_offsets(place, 5)[1] >= 3
    finally:
        consumer.close()
