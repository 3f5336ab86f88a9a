"""`moldau serve` on a store of another format: an older one is renamed, a newer one refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from moldau.broker.store import keys
from moldau.broker.store.format import CURRENT_VALUE, GUARD
from moldau.testing import BrokerFailed
from tests.support.brokers.running import Broker
from tests.support.raw.calls import create_topic, read_all, worker_clients
from tests.support.raw.client import make_batch
from tests.support.raw.group import RawMember, coordinator_port
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]
QUICK = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis") as started:
        yield started


def to_format_1(client: redis.Redis) -> None:
    """Rewrite the store as 0.2 would have written it."""
    found: list[Any] = client.keys("{moldau:*")
    for key in found:
        tag, _, what = key[1:].partition(b"}")
        if what.startswith(b":group:"):
            client.rename(key, b"moldau" + what)
        elif what == b":groups":
            client.rename(key, tag)
        elif what:
            client.rename(key, tag + what)
        else:
            client.delete(key)
    client.delete(keys.FORMAT)
    client.hdel(keys.TOPICS.decode(), GUARD)


@pytest.mark.parametrize("kind", ["embedded", "external"])
def test_topics_groups_and_offsets_are_there_after_the_upgrade(
    start_moldau: Start, server: RedisServer, kind: str
) -> None:
    where: dict[str, object] = {} if kind == "embedded" else {"redis": server.url}
    broker = start_moldau(workers=2, broker=QUICK, **where)
    with worker_clients(broker) as clients:
        create_topic(clients[0], "kept")
        now_ms = time.time_ns() // 1_000_000
        batch = make_batch([(None, b"one", now_ms), (None, b"two", now_ms)])
        assert clients[0].produce("kept", batch).error_code == 0
    with RawMember(coordinator_port(broker, "readers"), "readers") as member:
        member.enter()
        assert member.commit("kept", 1) == 0
        generation, member_id = member.generation, member.member_id
    data_dir, url = broker.data_dir, broker.store_url
    if kind == "external":
        assert broker.stop() == 0
        with redis.from_url(server.url) as client:
            to_format_1(client)
    else:
        with redis.from_url(url) as client:
            to_format_1(client)
        broker.kill_everything()

    broker = start_moldau(workers=2, broker=QUICK, data_dir=data_dir, **where)
    assert "the store has format 2 now" in broker.log()
    with redis.from_url(broker.store_url) as client:
        assert client.get(keys.FORMAT) == CURRENT_VALUE
        assert not client.keys("moldau:*:state")
        assert not client.keys("moldau:group:*")
    with worker_clients(broker) as clients:
        for one in clients:
            assert [record.value for record in read_all(one, "kept")] == [b"one", b"two"]
    with RawMember(coordinator_port(broker, "readers"), "readers", member_id=member_id) as member:
        member.generation = generation
        assert member.heartbeat() == 0
        assert member.committed("kept") == 1


@pytest.mark.parametrize("kind", ["embedded", "external"])
def test_a_store_of_a_newer_version_is_refused(
    start_moldau: Start, server: RedisServer, kind: str
) -> None:
    """The refusal is one line with cause and remedy."""
    where: dict[str, object] = {"redis": server.url}
    if kind == "embedded":
        broker = start_moldau(workers=1)
        with redis.from_url(broker.store_url) as client:
            client.set(keys.FORMAT, "3 0.9.0")
        assert broker.stop() == 0
        where = {"data_dir": broker.data_dir}
    else:
        with redis.from_url(server.url) as client:
            client.set(keys.FORMAT, "3 0.9.0")
            client.set(keys.CLUSTER, "cluster")
    with pytest.raises(BrokerFailed) as refused:
        start_moldau(workers=1, **where)
    assert refused.value.exit_code == 3
    said = [line for line in refused.value.log.splitlines() if "append-only file" not in line]
    assert said == [
        "moldau: the store has format 3, this version knows 2: it needs Moldau 0.9.0 or newer. "
        "Install that, or give another store (--data-dir, --redis)"
    ]
