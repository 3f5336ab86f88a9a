"""Logs are checked under the present store id: before that, their leader epochs are unknown."""

from itertools import count
from typing import Any

import pytest

from moldau.broker.log.log import Log
from moldau.broker.settings.kafka import BrokerConfig, topic_config
from moldau.broker.store import keys
from moldau.broker.store.topics import TopicRecord
from moldau.broker.store_loss import checked_logs
from moldau.broker.store_loss.checked_logs import CheckedLogs
from moldau.broker.topics.topics import Topic
from tests.support.drivers.log_host import Host, append, until
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain

_names = (f"checked-{number}" for number in count())
PARTITIONS = 3


class World:
    """A topic whose logs were last intact under another store id, with reservations beyond their
    end."""

    def __init__(self, host: Host, led: set[int]) -> None:
        record = TopicRecord(next(_names), b"\1" * 16, PARTITIONS, 0, 0)
        self.topic = Topic(record, topic_config({}, BrokerConfig({})))
        self.host = host
        self.led = led
        self.loaded: list[int] = []
        self.checked = CheckedLogs(self, self, host.integrity, host.leader_epochs)

    async def lose(self, store: Any) -> None:
        for partition in range(PARTITIONS):
            log = await self.host.create(self.topic.name, partition)
            await append(log, plain(b"a", b"b"))
            store.hset(keys.state(log.key), "history", "another")

    def epochs(self) -> list[int]:
        epoch_of = self.host.leader_epochs.of_partition
        return [epoch_of(self.topic, at) for at in range(PARTITIONS)]

    def has(self) -> list[bool]:
        return [self.checked.has(self.topic, at) for at in range(PARTITIONS)]

    # --- what it asks for ---

    def all(self) -> list[Topic]:
        return [self.topic]

    def leads(self, topic: str, partition: int) -> bool:
        return partition in self.led

    def log_for(self, topic: Topic, partition: int) -> Log:
        self.loaded.append(partition)
        return self.host.log(topic.name, partition)


async def test_logs_that_are_asked_for_are_checked_whoever_leads_them(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host:
        world = World(host, led=set())
        await world.lose(store)
        assert world.has() == [False] * PARTITIONS
        await world.checked.wait_for([world.topic])
        assert world.has() == [True] * PARTITIONS
        assert world.epochs() == [1] * PARTITIONS
        assert sorted(world.loaded) == [0, 1, 2]
        await world.checked.wait_for([world.topic])
        assert sorted(world.loaded) == [0, 1, 2], "once is enough"


async def test_in_the_background_each_worker_checks_what_it_leads(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url, worker=0, workers=2) as one, Host(
        server.url, worker=1, workers=2
    ) as two:  # fmt: skip
        first = World(one, led={0})
        await first.lose(store)
        second = World(two, led={1, 2})
        second.topic = first.topic
        first.checked.begin()
        await until(lambda: first.has() == [True, False, False])
        assert not first.checked.is_complete
        second.checked.begin()
        for world in (first, second):
            await world.checked.wait_for(None)
            assert world.checked.is_complete
            assert world.epochs() == [1] * PARTITIONS
        assert (first.loaded, sorted(second.loaded)) == ([0], [1, 2])


async def test_what_cannot_be_checked_in_time_is_not_known(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_logs, "WITHIN_S", 0.2)
    async with Host(server.url) as host:
        world = World(host, led=set())
        await world.lose(store)
        store.hset(keys.state(world.topic.key(0)), "history", host.integrity.store_id)
        world.checked.begin()
        await world.checked.wait_for(None)  # nobody leads the others
        assert not world.checked.is_complete
        assert world.has() == [True, False, False]
        assert world.loaded == []
        world.checked.close()


async def test_after_a_change_of_the_store_nothing_is_checked(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(server.url) as host:
        world = World(host, led={0, 1, 2})
        await world.lose(store)
        world.checked.begin()
        await world.checked.wait_for(None)
        assert world.checked.is_complete
        monkeypatch.setattr(type(host.integrity), "store_id", b"a later one")
        assert not world.checked.is_complete
        assert world.has() == [False] * PARTITIONS


async def test_a_topic_that_is_gone_keeps_nothing_waiting(server: RedisServer) -> None:
    async with Host(server.url) as host:
        world = World(host, led={0, 1, 2})
        world.checked.begin()
        await world.checked.wait_for(None)
        assert world.checked.is_complete
        assert world.loaded == []


async def test_damaged_epochs_of_one_log_keep_nothing_waiting(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url) as host:
        world = World(host, led={0, 1, 2})
        await world.lose(store)
        damaged = keys.state(world.topic.key(1))
        store.hset(damaged, mapping={"history": host.integrity.store_id, "epochs": "nonsense"})
        world.checked.begin()
        await world.checked.wait_for(None)
        assert world.checked.is_complete
        assert world.epochs() == [1, 0, 1]


async def test_nobody_waits_for_a_check_that_has_failed(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(server.url) as host:
        world = World(host, led=set())

        def fail() -> list[Topic]:
            raise ZeroDivisionError

        monkeypatch.setattr(world, "all", fail)
        world.checked.begin()
        await world.checked.wait_for(None)
        assert not world.checked.is_complete
        failed = world.checked._checking
        assert failed is not None
        assert isinstance(failed.exception(), ZeroDivisionError)
