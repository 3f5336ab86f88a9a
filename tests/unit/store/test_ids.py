"""Producer ids and incarnations: never given twice, even by a store that was put back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from moldau.broker.store import keys
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.topics import TopicRecord, TopicStore
from moldau.ops.serve.embedded_store import server_binary
from tests.support.stores.redis_server import RedisServer, start_redis


class PutBack:
    """A server that can lose everything since `keep`."""

    def __init__(self, directory: Path, program: str | None) -> None:
        self._directory = directory
        self._program = program
        self.server: RedisServer = start_redis(directory, program=program)

    def keep(self) -> None:
        with redis.from_url(self.server.url) as client:
            client.save()

    def lose(self) -> None:
        self.server.stop()
        self.server = start_redis(self._directory, program=self._program, port=self.server.port)


@pytest.fixture(params=["redis", "valkey"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PutBack]:
    found = PutBack(tmp_path, None if request.param == "redis" else str(server_binary()))
    yield found
    found.server.stop()


@asynccontextmanager
async def worker(store: PutBack) -> AsyncIterator[TopicStore]:
    """A topic store, as a worker starts on it."""
    pipe = Pipe(Connector(store.server.url), "ids", identity=StoreIdentity())
    await pipe.connect()
    try:
        topics = TopicStore(pipe)
        await topics.contents_id()
        yield topics
    finally:
        pipe.close()
        await asyncio.sleep(0.01)


def record(name: str, incarnation: int) -> TopicRecord:
    return TopicRecord(name, b"i" * 16, 1, incarnation, 0)


async def test_producer_ids_after_a_loss_are_above_all_that_were_given(store: PutBack) -> None:
    async with worker(store) as topics:
        given = [await topics.take_producer_ids(1000)]
        store.keep()
        given += [await topics.take_producer_ids(1000) for _ in range(50)]
    store.lose()
    async with worker(store) as topics:  # one that was not there before
        given += [await topics.take_producer_ids(1000) for _ in range(50)]
    assert all(later - earlier >= 1000 for earlier, later in pairwise(given))
    assert given[-1] < 1 << 63


async def test_a_worker_never_takes_its_own_ids_again(store: PutBack) -> None:
    """Even if the clock of the server that took over is far behind."""
    async with worker(store) as topics:
        with redis.from_url(store.server.url) as client:
            ahead = 9_000_000_000_000_000_000
            client.set(keys.PRODUCER_IDS, ahead)
            taken = await topics.take_producer_ids(1000)
            assert taken > ahead
            client.delete(keys.PRODUCER_IDS)
            assert await topics.take_producer_ids(1500) >= taken + 1000
            assert await topics.take_producer_ids(1) >= taken + 3000
            client.delete(keys.PRODUCER_IDS)
            await topics.reseed()
        async with worker(store) as other:
            assert await other.take_producer_ids(1000) > taken + 3000


async def test_producer_ids_of_an_older_version_are_not_given_again(store: PutBack) -> None:
    async with worker(store) as topics:
        with redis.from_url(store.server.url) as client:
            for counted in (0, 7, 4000, 4001, 8_999_999_999_999_999_001):
                client.set(keys.PRODUCER_IDS, counted)
                assert await topics.take_producer_ids(1000) >= counted


async def test_the_first_topic_of_a_name_has_incarnation_0(store: PutBack) -> None:
    async with worker(store) as topics, worker(store) as other:
        assert await topics.new_incarnation("orders", unused=True) == 0
        assert await other.new_incarnation("orders", unused=True) == 0
        assert await topics.new_incarnation("orders", unused=False) > 0


async def test_a_topic_that_was_deleted_gets_a_higher_incarnation(store: PutBack) -> None:
    async with worker(store) as topics:
        given = [0]
        for _ in range(3):
            old = record("orders", given[-1])
            assert await topics.add(old)
            assert await topics.remove(old)
            given.append(await topics.new_incarnation("orders", unused=True))
        assert given == sorted(set(given))
        # Whatever the clock says.
        with redis.from_url(store.server.url) as client:
            client.hset(keys.INCARNATIONS.decode(), "orders", 1 << 52)
        assert await topics.new_incarnation("orders", unused=True) == 1 << 52


async def test_a_creation_that_was_lost_is_not_repeated(store: PutBack) -> None:
    """Nor is that of a topic that was deleted and created again after the kept state."""
    async with worker(store) as topics:
        old = record("back", 0)
        assert await topics.add(old)
        store.keep()
        assert await topics.new_incarnation("lost", unused=True) == 0
        assert await topics.remove(old)
        later = await topics.new_incarnation("back", unused=True)
    store.lose()
    async with worker(store) as topics:
        assert await topics.new_incarnation("lost", unused=True) > 0
        assert await topics.remove(old)
        assert await topics.new_incarnation("back", unused=True) > later > 0


async def test_an_emptied_store_does_not_begin_again(store: PutBack) -> None:
    async with worker(store) as topics:
        assert await topics.new_incarnation("gone", unused=True) == 0
        with redis.from_url(store.server.url) as client:
            client.flushall()
        assert await topics.new_incarnation("gone", unused=True) > 0
        await topics.reseed()
        await topics.contents_id()
        async with worker(store) as other:
            assert await other.new_incarnation("gone", unused=True) > 0
