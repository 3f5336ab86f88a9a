"""FLUSHALL under a running broker: what is gone is not served from memory, and no client hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, Producer

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic, read_all, worker_clients
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.group import RawMember, coordinator_port
from tests.support.stores.redis_server import RedisServer, start_redis

Start = Callable[..., Broker]
PATIENCE_S = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = start_redis(tmp_path / "redis")
    yield server
    server.stop()


def _empty(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def _knows(client: RawClient, topic: str) -> bool:
    answer = client.call(MetadataRequest(None, allow_auto_topic_creation=False))
    return topic in {found.name for found in answer.topics}


def _until_unknown(client: RawClient, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _knows(client, topic):
        assert time.monotonic() < deadline, "a topic of the past is still served"
        time.sleep(0.05)


def _batch(values: list[bytes]) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return make_batch([(None, value, now_ms) for value in values])


def _append_when_possible(client: RawClient, topic: str, value: bytes) -> int:
    """Append as producers do, with retries; returns the record's offset."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.produce(topic, _batch([value]))
        if answer.error_code == 0:
            return answer.base_offset
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert time.monotonic() < deadline, "it is never served again"
        time.sleep(0.02)


def test_topics_that_were_flushed_are_gone_on_every_worker(
    start_moldau: Start, server: RedisServer
) -> None:
    broker = start_moldau(redis=server.url, workers=2)
    with worker_clients(broker) as clients:
        create_topic(clients[0], "flushed")
        for client in clients:  # both have the log in their memory
            client.produce("flushed", _batch([b"one", b"two"]))
        cluster = clients[0].call(MetadataRequest([])).cluster_id
        given = [client.call(InitProducerIdRequest(None, 0)).producer_id for client in clients]
        port = broker.processes("worker")[0]["port"]
        with ThreadPoolExecutor() as pool, RawClient(port, timeout=90) as waiting:
            parked = pool.submit(waiting.fetch, "flushed", 4, max_wait_ms=60_000, min_bytes=1)
            time.sleep(0.3)

            _empty(server)

            answer = parked.result(PATIENCE_S)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for client in clients:
            _until_unknown(client, "flushed")
        assert broker.log().count("THE STORE WAS EMPTIED") == 2
        for client in clients:
            answer = client.fetch("flushed", 0)
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert client.call(MetadataRequest([])).cluster_id == cluster
        given += [client.call(InitProducerIdRequest(None, 0)).producer_id for client in clients]
        assert len(set(given)) == 4


def test_a_topic_made_again_at_once_begins_at_0(start_moldau: Start, server: RedisServer) -> None:
    """No worker appends at the end it had before, even if none has noticed yet."""
    broker = start_moldau(redis=server.url, workers=2)
    with worker_clients(broker) as clients:
        for turn in range(3):
            name = f"again-{turn}"
            create_topic(clients[0], name)
            for client in clients:
                client.produce(name, _batch([b"one", b"two"]))

            _empty(server)
            create_topic(clients[0], name)

            offsets = [_append_when_possible(client, name, b"new") for client in reversed(clients)]
            assert offsets == [0, 1]
            for client in clients:
                assert [record.value for record in read_all(client, name)] == [b"new", b"new"]


def test_clients_go_on_after_a_flush(start_moldau: Start, server: RedisServer) -> None:
    broker = start_moldau(redis=server.url, workers=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.subscribe(["flushed"])
    try:
        for values in (["a", "b", "c"], ["d", "e"]):
            for value in values:
                producer.produce("flushed", value)
            assert producer.flush(PATIENCE_S) == 0
            seen: list[bytes | None] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < len(values):
                assert time.monotonic() < deadline, f"only {seen} came"
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    seen.append(message.value())
            assert seen == [value.encode() for value in values]
            _empty(server)
            with worker_clients(broker) as clients:
                for client in clients:
                    _until_unknown(client, "flushed")
    finally:
        consumer.close()


def test_groups_are_stored_again(start_moldau: Start, server: RedisServer) -> None:
    """Not only with their next rebalance: a worker that dies then would have forgotten them."""
    broker = start_moldau(
        redis=server.url, workers=1, broker={"group.initial.rebalance.delay.ms": 0}
    )
    with (
        redis.Redis.from_url(server.url) as client,
        RawMember(coordinator_port(broker, "readers"), "readers") as member,
    ):
        member.enter()
        _empty(server)
        key = keys.group(slot_of("readers"), "readers")
        wait_until(lambda: bool(client.exists(key)), PATIENCE_S, "the group is stored again")
        assert member.heartbeat() == 0
        generation, member_id = member.generation, member.member_id
        broker.wait_restarted("worker", 0, broker.kill("worker"))
    with RawMember(coordinator_port(broker, "readers"), "readers", member_id=member_id) as again:
        again.generation = generation
        assert again.heartbeat() == 0
