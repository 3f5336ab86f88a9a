"""The store for processes that may block, on a real server."""

from collections.abc import Iterator

import pytest
import redis

from moldau.broker.errors import StoreUnavailable
from moldau.broker.store import keys
from moldau.broker.store.blocking import BlockingStore
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(server: RedisServer, raw: redis.Redis) -> Iterator[BlockingStore]:
    with BlockingStore(server.url) as opened:
        yield opened


def test_the_cluster_id(store: BlockingStore, raw: redis.Redis) -> None:
    assert store.cluster_id() is None
    raw.set(keys.CLUSTER, "an-id")
    assert store.cluster_id() == "an-id"


def test_persistence_and_a_server_that_is_down(store: BlockingStore, server: RedisServer) -> None:
    assert {"aof_enabled", "used_memory"} <= store.persistence().keys()
    with BlockingStore("redis://127.0.0.1:1") as nowhere, pytest.raises(StoreUnavailable):
        nowhere.cluster_id()
