"""A store of format 1 becomes one of format 2, once, whole, and whatever interrupts it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from moldau.broker.errors import StoreRefused
from moldau.broker.settings.kafka import BrokerConfig, InvalidConfig, topic_config
from moldau.broker.store import format as store_format
from moldau.broker.store import keys
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.format import CURRENT_VALUE, GUARD, migrate
from moldau.broker.store.store import Store
from moldau.broker.store.topics import TopicRecord
from tests.support.brokers.running import ROOT, wait_until
from tests.support.stores.redis_server import RedisServer
from tests.unit.store.old_store import fill

OWN = {keys.FORMAT, keys.TOPICS}
MIGRATE = (
    "import sys; from moldau.broker.store.blocking import BlockingStore; "
    "from moldau.broker.store import format; format.STEP = 20; "
    "format.migrate(BlockingStore(sys.argv[1]))"
)


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(server: RedisServer, raw: redis.Redis) -> Iterator[BlockingStore]:
    with BlockingStore(server.url) as opened:
        yield opened


def contents(client: redis.Redis) -> dict[bytes, bytes]:
    found = {key: client.dump(key) for key in client.scan_iter(count=1000) if key not in OWN}
    return {key: value for key, value in found.items() if value is not None}


def renamed(before: dict[bytes, bytes], names: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {names.get(key, key): value for key, value in before.items()}


def test_every_kind_of_key_gets_its_new_name(
    store: BlockingStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    names = fill(raw)
    before = contents(raw)
    records = {record.name: record for record in store.topic_records()}
    with caplog.at_level(logging.INFO, "moldau.store"):
        migrate(store)

    assert contents(raw) == renamed(before, names)
    assert raw.get(keys.FORMAT) == CURRENT_VALUE
    assert 0 < raw.pttl("{moldau:orders:0}:cleaner") <= 600_000
    assert {record.name: record for record in store.topic_records()} == records
    assert f"the store has format 2 now: {len(names)} keys renamed" in caplog.text
    assert "b'a}b' of its stream cannot be a hash tag" in caplog.text
    caplog.clear()
    migrate(store)
    assert contents(raw) == renamed(before, names)
    assert not caplog.text


def test_a_migration_that_is_killed_goes_on_with_the_next_start(
    server: RedisServer, store: BlockingStore, raw: redis.Redis
) -> None:
    names = fill(raw, topics=400)
    before = contents(raw)
    raw.config_resetstat()
    running = subprocess.Popen([sys.executable, "-c", MIGRATE, server.url], cwd=ROOT)
    wait_until(lambda: renames(raw) > 500, 30, "it is under way")
    running.kill()
    running.wait()

    halfway = set(contents(raw))
    assert halfway & names.keys(), "something is still to be done"
    assert halfway & set(names.values()), "something is done"
    assert raw.get(keys.FORMAT) is None
    assert raw.hexists(keys.TOPICS.decode(), GUARD), "no older version may start on it"
    migrate(store)
    assert contents(raw) == renamed(before, names)
    assert raw.get(keys.FORMAT) == CURRENT_VALUE


def renames(client: redis.Redis) -> int:
    stats = client.info("commandstats").get("cmdstat_renamenx", {"calls": 0})
    return int(stats["calls"])


def test_one_that_is_asked_to_stop(
    store: BlockingStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fill(raw, topics=50)
    before = contents(raw)
    monkeypatch.setattr(store_format, "STEP", 10)
    steps = iter([False, False])
    migrate(store, lambda: next(steps, True))
    assert raw.get(keys.FORMAT) is None
    migrate(store)
    assert contents(raw) == renamed(before, names)


def test_a_full_store_can_be_migrated(store: BlockingStore, raw: redis.Redis) -> None:
    names = fill(raw)
    before = contents(raw)
    raw.config_set("maxmemory", 1)
    try:
        migrate(store)
    finally:
        raw.config_set("maxmemory", 0)
    assert contents(raw) == renamed(before, names)
    assert raw.get(keys.FORMAT) == CURRENT_VALUE


def test_nothing_is_overwritten(
    store: BlockingStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    fill(raw)
    raw.set("{moldau:orders:0}:state", "mine")
    migrate(store)
    assert raw.get("{moldau:orders:0}:state") == b"mine"
    assert raw.exists("moldau:orders:0:state")
    assert "b'moldau:orders:0:state' is kept" in caplog.text


def test_an_empty_store_has_the_current_format(store: BlockingStore, raw: redis.Redis) -> None:
    raw.set("another application's", 1)
    migrate(store)
    assert raw.get(keys.FORMAT) == CURRENT_VALUE
    assert raw.hkeys(keys.TOPICS.decode()) == [GUARD.encode()]


def test_a_newer_format_is_refused(store: BlockingStore, raw: redis.Redis) -> None:
    raw.set(keys.FORMAT, "3 0.7.1")
    with pytest.raises(StoreRefused, match=r"has format 3, .* needs Moldau 0\.7\.1 or newer"):
        migrate(store)


def test_version_0_2_refuses_to_start(store: BlockingStore, raw: redis.Redis) -> None:
    """It reads every topic's configuration before it serves, and this one cannot be read."""
    migrate(store)
    stored: Any = raw.hget("moldau:topics", GUARD)
    record = msgspec.msgpack.decode(stored, type=TopicRecord)
    with pytest.raises(InvalidConfig, match=r"format 2 and needs Moldau 0\.3\.0"):
        topic_config(record.configs, BrokerConfig())


async def test_what_workers_find(server: RedisServer, raw: redis.Redis) -> None:
    own = Store(server.url, 0)
    await own.connect()
    try:
        # An empty store, or one that was emptied under them, gets the format of what they write.
        await own.topics.check_format()
        assert raw.get(keys.FORMAT) == CURRENT_VALUE
        assert await own.topics.all_topics() == []
        assert await own.topics.topic(GUARD) is None
        await own.topics.check_format()
        raw.flushall()
        await own.topics.add(TopicRecord("new", b"0" * 16, 1, 0, 1))
        await own.streams.create(keys.stream("new", 0, 0))
        await own.topics.reseed()
        assert raw.get(keys.FORMAT) == CURRENT_VALUE
        # One of format 1 that took its place needs the supervisor.
        raw.flushall()
        fill(raw)
        with pytest.raises(StoreRefused, match="start it again"):
            await own.topics.reseed()
        assert raw.get(keys.FORMAT) is None
        raw.set(keys.FORMAT, "9 2.0.0")
        with pytest.raises(StoreRefused, match=r"needs Moldau 2\.0\.0"):
            await own.topics.check_format()
    finally:
        own.close()
