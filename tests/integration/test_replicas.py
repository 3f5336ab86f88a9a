"""`min.insync.replicas` with acks=all waits for replicas of an external Redis (WAIT)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.brokers.running import Broker
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "primary", "--appendonly", "yes") as server:
        yield server


def _topic(broker: Broker, name: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {"min.insync.replicas": str(replicas)}
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(10)


def _produce(broker: Broker, topic: str, acks: str) -> KafkaError | None:
    """The error one record meets, without the client's own retries; None when it got through."""
    outcome: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "acks": acks,
            "retries": 0,
            "linger.ms": 0,
            "request.timeout.ms": 3000,
        }
    )
    producer.produce(topic, b"value", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(20)
    assert len(outcome) == 1
    return outcome[0]


def _replicas_online(server: RedisServer) -> int:
    with redis.from_url(server.url) as client:
        facts = client.info("replication")
    return sum(
        1 for name, value in facts.items() if name.startswith("slave") and "online" in str(value)
    )


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_acks_all_waits_for_replicas_of_the_store(
    tmp_path: Path, primary: RedisServer, start_moldau: Start
) -> None:
    broker = start_moldau(redis=primary.url)
    _topic(broker, "safe", 2)
    _topic(broker, "plain", 1)

    refused = _produce(broker, "safe", "all")
    assert refused is not None
    assert refused.code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert _produce(broker, "safe", "1") is None, "acks=1 does not wait for replicas"
    assert _produce(broker, "plain", "all") is None

    follow = ("--replicaof", f"127.0.0.1 {primary.port}")
    with running_redis(tmp_path / "replica", *follow) as replica:
        _until(lambda: _replicas_online(primary) == 1, "the replica does not come up")
        _until(lambda: _produce(broker, "safe", "all") is None, "the replica is not seen")
        with redis.from_url(replica.url) as client:
            assert client.xlen("moldau:safe:0") >= 2, "acknowledged, and not on the replica"
    _until(lambda: _replicas_online(primary) == 0, "the primary does not miss its replica")
    _until(lambda: _produce(broker, "safe", "all") is not None, "the loss is not seen")


def test_min_insync_replicas_is_checked_when_set(start_moldau: Start, primary: RedisServer) -> None:
    broker = start_moldau(redis=primary.url)
    with pytest.raises(KafkaException) as caught:
        _topic(broker, "nonsense", 0)
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
