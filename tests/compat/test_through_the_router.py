"""Every client works where only the router's port can be reached (`--advertise router`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer

from tests.support.brokers.running import Broker, running_broker
from tests.support.clients.aiokafka import Aiokafka
from tests.support.clients.base import Client
from tests.support.clients.confluent import Confluent
from tests.support.clients.kafka_python import KafkaPython
from tests.support.compat.consuming import ConsumingTests
from tests.support.compat.producing import ProducingTests
from tests.support.compat.session import Session, numbered
from tests.support.compat.transactions import TransactionTests

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    """Two workers and two routers; one port is advertised."""
    quick = {"group.initial.rebalance.delay.ms": 100}
    with running_broker(workers=2, routers=2, advertise="router", broker=quick) as broker:
        yield broker


@pytest.fixture(scope="module", params=[Confluent, KafkaPython, Aiokafka])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    client = request.param()
    yield client
    if isinstance(client, Aiokafka):
        client.close()


class TestProducing(ProducingTests):
    def test_keys_choose_partitions_led_by_different_workers(self, kafka: Session) -> None:
        topic = kafka.topic(partitions=8)
        records = numbered(400, partition=None)
        kafka.produce(topic, records)

        found = kafka.read(topic, len(records), partitions=8)

        assert sorted(one.value or b"" for one in found) == [one.value for one in records]
        assert set(kafka.admin.leaders(topic).values()) == {0}

    def test_order_within_partitions_that_several_workers_lead(self, kafka: Session) -> None:
        """The producer is not idempotent, which would hide that a request overtook another."""
        topic = kafka.topic(partitions=4)
        producer = kafka.producer(idempotent=False, linger_ms=0, batch_bytes=2000)
        for number in range(4000):
            for record in numbered(1, f"{number:05}", partition=number % 4):
                producer.send(topic, record)
        producer.flush()

        found = kafka.read(topic, 4000, partitions=4)

        for partition in range(4):
            values = [one.value for one in found if one.partition == partition]
            assert values == sorted(values, key=lambda value: value or b"")


class TestConsuming(ConsumingTests):
    pass


class TestTransactions(TransactionTests):
    pass


# --- groups ---


def read_with_confluent(bootstrap: str, topic: str, group: str, count: int) -> int:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = 0
    deadline = time.monotonic() + PATIENCE_S
    while found < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def read_with_kafka_python(bootstrap: str, topic: str, group: str, count: int) -> int:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    found = 0
    deadline = time.monotonic() + PATIENCE_S
    while found < count and time.monotonic() < deadline:
        found += sum(len(records) for records in consumer.poll(1000).values())
    consumer.commit()
    consumer.close()
    return found


def read_with_aiokafka(bootstrap: str, topic: str, group: str, count: int) -> int:
    import asyncio

    from aiokafka import AIOKafkaConsumer

    async def read() -> int:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await consumer.start()
        found = 0
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    while found < count:
                        batches = await consumer.getmany(timeout_ms=1000)
                        found += sum(len(records) for records in batches.values())
            await consumer.commit()
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("read", [read_with_confluent, read_with_kafka_python, read_with_aiokafka])
def test_a_group_through_one_port(
    moldau: Broker, read: Callable[[str, str, str, int], Any]
) -> None:
    session = Session(Confluent(), moldau)
    topic = session.topic(partitions=4)
    session.produce(topic, numbered(200, partition=None))
    # One of each worker's.
    for number in range(2):
        group = f"{topic}-{number}"
        assert read(moldau.bootstrap, topic, group, 200) == 200
        consumer = Consumer({"bootstrap.servers": moldau.bootstrap, "group.id": group})
        committed = consumer.committed(
            [TopicPartition(topic, partition) for partition in range(4)], timeout=30
        )
        consumer.close()
        assert sum(max(place.offset, 0) for place in committed) == 200
    session.close()
