"""A store that lost its tail under a running broker: no name and no number is used twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic, read_all, worker_clients
from tests.support.raw.client import RawClient, make_batch
from tests.support.stores.redis_server import RedisServer, start_redis

Start = Callable[..., Broker]
PATIENCE_S = 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "redis"


@pytest.fixture
def server(directory: Path) -> Iterator[RedisServer]:
    server = start_redis(directory)
    yield server
    server.stop()


def _topic_ids(client: RawClient) -> dict[str | None, bytes]:
    answer = client.call(MetadataRequest(None, allow_auto_topic_creation=False))
    return {found.name: found.topic_id for found in answer.topics}


def _until_unknown(client: RawClient, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while topic in _topic_ids(client):
        assert time.monotonic() < deadline, "a topic that was lost is still served"
        time.sleep(0.05)


def _until_read(client: RawClient, topic: str, values: list[bytes]) -> None:
    def is_read() -> bool:
        return [record.value for record in read_all(client, topic)] == values

    wait_until(is_read, PATIENCE_S, f"{values} in {topic}")


def _append(client: RawClient, topic: str, value: bytes) -> int:
    """Append as producers do, with retries; returns the record's offset."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.produce(topic, make_batch([(None, value, time.time_ns() // 1_000_000)]))
        if answer.error_code == 0:
            return answer.base_offset
        assert time.monotonic() < deadline, f"error {answer.error_code} forever"
        time.sleep(0.02)


def test_a_topic_whose_creation_was_lost(
    start_moldau: Start, server: RedisServer, directory: Path
) -> None:
    broker = start_moldau(redis=server.url, workers=2)
    with worker_clients(broker) as clients, redis.from_url(server.url) as store:
        create_topic(clients[0], "kept")
        store.save()
        create_topic(clients[0], "lost")
        for client in clients:  # both have the log in their memory
            _append(client, "lost", b"old")
        before = _topic_ids(clients[0])
        assert before["lost"] == _topic_ids(clients[1])["lost"]
        ask = InitProducerIdRequest(None, 0)
        given = [client.call(ask).producer_id for client in clients]
        store.close()

        server.stop()
        again = start_redis(directory, port=server.port)
        try:
            for client in clients:
                _until_unknown(client, "lost")
                assert _topic_ids(client)["kept"] == before["kept"]
            create_topic(clients[1], "lost")
            assert [_append(client, "lost", b"new") for client in clients] == [0, 1]
            for client in clients:  # the leader is notified of what went through the other one
                _until_read(client, "lost", [b"new"] * 2)
            assert not store.exists("moldau:lost:0"), "the key of the log that was lost"
            assert len(store.keys("moldau:lost~*:0")) == 1

            for index in range(2):  # they have blocks of ids in their memory
                broker.wait_restarted("worker", index, broker.kill("worker", index))
            with worker_clients(broker) as others:
                given += [client.call(ask).producer_id for client in others]
            assert len(set(given)) == 4
            assert min(given[2:]) > max(given[:2])
        finally:
            again.stop()
