"""A new leader epoch under running clients: the store comes back without the end of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from tests.support.brokers.running import Broker
from tests.support.raw.calls import create_topic, worker_clients
from tests.support.raw.client import NAMED_FETCH, RawClient, make_batch, records_in
from tests.support.stores.lossy import LossyStore, programs

Start = Callable[..., Broker]
PATIENCE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LossyStore]:
    with LossyStore(tmp_path / "store", programs()["valkey"]) as made:
        yield made


def lose(store: LossyStore, kept: int) -> None:
    store.kill()
    time.sleep(0.5)
    store.cut_to(kept)
    store.start()


def batch(*values: bytes) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return make_batch([(None, value, now_ms) for value in values])


def answered(client: RawClient, request: FetchRequest) -> PartitionData:
    """What it gets in the end, as clients do: while the store is away, an error that is retried."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer: PartitionData = client.receive().responses[0].partitions[0]
        if answer.error_code not in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.REQUEST_TIMED_OUT,
        ):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
        client.send(request, NAMED_FETCH)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_waiting_fetch(start_moldau: Start, store: LossyStore, epoch: int) -> None:
    """A fetch with an epoch is fenced at once; one without gets what comes after the gap."""
    broker = start_moldau(redis=store.url, workers=2)
    with worker_clients(broker) as clients, RawClient(broker.port) as writer:
        create_topic(clients[0], "waited")
        for _ in range(5):
            assert writer.produce("waited", batch(b"kept")).error_code == 0
        kept = store.size()
        for _ in range(5):
            assert writer.produce("waited", batch(b"lost")).error_code == 0
        wanted = FetchPartition(0, epoch, 10, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=25_000,
            min_bytes=1,
            topics=[FetchTopic("waited", partitions=[wanted])],
        )
        for client in clients:
            client.send(request, NAMED_FETCH)
        time.sleep(0.5)
        began = time.monotonic()
        lose(store, kept)
        if epoch >= 0:
            for client in clients:
                fenced = answered(client, request)
                assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
        else:
            deadline = time.monotonic() + PATIENCE_S
            while (answer := writer.produce("waited", batch(b"new"))).error_code:
                assert time.monotonic() < deadline, answer
                time.sleep(0.1)
            assert answer.base_offset >= 10
            for client in clients:
                found = answered(client, request)
                assert found.error_code == 0
                assert [one.value for one in records_in(found)][:1] == [b"new"]
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_librdkafka_consumer_reads_on(start_moldau: Start, store: LossyStore) -> None:
    """It has read what was lost: it gets every new record, and none twice."""
    broker = start_moldau(redis=store.url, workers=2)
    with RawClient(broker.port) as client:
        create_topic(client, "tailed")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": False})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "any", "auto.offset.reset": "latest",
         "enable.auto.commit": False}
    )  # fmt: skip

    def produce(name: str, count: int) -> None:
        for number in range(count):
            producer.produce("tailed", f"{name}-{number}")
        assert producer.flush(PATIENCE_S) == 0

    def consume(count: int) -> list[tuple[int | None, str]]:
        seen: list[tuple[int | None, str]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen.append((message.offset(), (message.value() or b"").decode()))
        return seen

    try:
        consumer.assign([TopicPartition("tailed", 0, 0)])
        produce("kept", 20)
        assert len(consume(20)) == 20
        kept = store.size()
        produce("lost", 20)
        assert consume(20)[-1] == (39, "lost-19")
        lose(store, kept)
        produce("new", 30)
        seen = consume(30)
        assert [value for _, value in seen] == [f"new-{number}" for number in range(30)]
        assert seen[0][0] is not None
        assert seen[0][0] >= 40
        produce("more", 5)
        assert len(consume(5)) == 5
    finally:
        consumer.close()
