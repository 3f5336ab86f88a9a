"""Connections that follow the master: real servers, real sentinels."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from moldau.broker.errors import StoreDemoted, StoreDown, StoreFault, StoreUnavailable
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.check import UnsuitableStore, check_store
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.store import Store
from moldau.ops.serve.embedded_store import server_binary
from tests.support.stores.redis_server import RedisServer, running_redis
from tests.support.stores.sentinel import Watched, watched_servers

PATIENCE_S = 30


@pytest.fixture(scope="module", params=["redis", "valkey"])
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    with watched_servers(
        tmp_path_factory.mktemp("watched"),
        sentinels=3,
        program=None if request.param == "redis" else str(server_binary()),
        password="s3cret",
    ) as servers:
        yield servers


@asynccontextmanager
async def pipe_to(url: str) -> AsyncIterator[Pipe]:
    pipe = Pipe(Connector(url), "pipe")
    await pipe.connect()
    try:
        yield pipe
    finally:
        pipe.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[Store]:
    store = Store(url, 0)
    await store.connect()
    try:
        yield store
    finally:
        store.close()
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def set_when_possible(pipe: Pipe, key: str, value: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await pipe.ask("SET", key, value)
            except StoreFault:
                await pipe.wait_up()
            else:
                return


def cluster_id(blocking: BlockingStore) -> str | None:
    """None while sentinels do not agree yet: pipes may know the new master before they do."""
    with contextlib.suppress(StoreUnavailable):
        return blocking.cluster_id()
    return None


async def test_all_follow_the_master(watched: Watched) -> None:
    """Planned, and after kill -9; whichever sentinel is asked; without a word from the caller."""
    async with store_at(watched.url) as store:
        with BlockingStore(watched.url) as blocking:
            assert store.control.server == ("127.0.0.1", watched.master_port)
            await store.control.ask("SET", "moldau:cluster", "one")
            assert blocking.cluster_id() == "one"
            pipes = store._pipes()

            await asyncio.to_thread(watched.fail_over)
            await until(lambda: {p.server for p in pipes} == {("127.0.0.1", watched.master_port)})
            await set_when_possible(store.control, "moldau:cluster", "two")
            await until(lambda: cluster_id(blocking) == "two")

            await asyncio.to_thread(watched.wait_for_replica)
            assert "does not set min-replicas-to-write" in check_store(watched.url).warnings[0]
            watched.stop_sentinel(0)  # two of three are enough
            watched.sentinel_ports.append(watched.sentinel_ports.pop(0))
            killed = await asyncio.to_thread(watched.kill_master)
            await asyncio.to_thread(watched.wait_for_another, killed)
            await set_when_possible(store.control, "moldau:cluster", "three")
            await until(lambda: {p.server for p in pipes} == {("127.0.0.1", watched.master_port)})
            await until(lambda: cluster_id(blocking) == "three")
    await asyncio.to_thread(watched.start_again, killed)


async def test_a_master_that_says_nothing_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine has no power, or no network: no connection is closed."""
    with watched_servers(tmp_path) as watched:
        async with store_at(watched.url) as store:
            silent = watched.master
            silent.process.send_signal(signal.SIGSTOP)
            await set_when_possible(store.control, "key", "value")
            assert store.control.server == ("127.0.0.1", watched.master_port)
            assert watched.master_port != silent.port
            assert "no reply for" not in caplog.text, "not by stall detection"
            with redis.Redis(port=watched.master_port) as client:
                assert client.get("key") == b"value"


async def test_sentinels_that_cannot_help(tmp_path: Path) -> None:
    url = "redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:2/main"
    pipe = Pipe(Connector(url), "pipe")
    with pytest.raises(StoreUnavailable, match="no sentinel names a master main") as refusal:
        await pipe.connect()
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(UnsuitableStore, match="No master found for 'main'") as unsuitable:
        check_store(url)
    assert "s3cret" not in str(unsuitable.value)
    with watched_servers(tmp_path, replicas=0, sentinel_password="other") as watched:
        async with pipe_to(watched.url) as pipe:
            assert await pipe.ask("PING") == b"PONG"
        assert "has no replicas" in check_store(watched.url).warnings[0]
        for wrong, reason in (
            (watched.url.replace("/main", "/nobody"), "it knows no master nobody"),
            (watched.url.replace("=other", "=wrong"), "WRONGPASS"),
            (watched.url.replace("=other", "="), "NOAUTH"),
        ):
            with pytest.raises(StoreUnavailable, match=reason):
                await Pipe(Connector(wrong), "pipe").connect()


# --- servers that are demoted, without Sentinel ---


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_redis(tmp_path / "one") as one, running_redis(tmp_path / "two") as two:
        yield one, two


def demote(server: RedisServer, master: RedisServer) -> None:
    with redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", master.port)


def promote(server: RedisServer) -> None:
    with redis.from_url(server.url) as client:
        client.replicaof("NO", "ONE")


async def test_a_replica_is_not_connected_to(two: tuple[RedisServer, RedisServer]) -> None:
    demote(two[0], two[1])
    with pytest.raises(StoreUnavailable, match="is a replica"):
        await Pipe(Connector(two[0].url), "pipe").connect()


async def test_a_write_to_a_demoted_master_did_not_happen(
    two: tuple[RedisServer, RedisServer],
) -> None:
    """Every command that was sent gets its reply, then the pipe waits for a master."""
    async with pipe_to(two[0].url) as pipe:
        demote(two[0], two[1])
        answers = [pipe.call("SET", "key", number) for number in range(50)]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StoreDemoted}
        assert not pipe.is_up
        with pytest.raises(StoreDown):
            await pipe.ask("SET", "key", "more")
        await asyncio.sleep(0.3)
        assert not pipe.is_up
        promote(two[0])
        await set_when_possible(pipe, "key", "again")
        assert await pipe.ask("GET", "key") == b"again"


async def test_a_command_that_blocks_on_a_demoted_master_ends(
    two: tuple[RedisServer, RedisServer],
) -> None:
    async with pipe_to(two[0].url) as pipe:
        blocked = pipe.call("XREAD", "BLOCK", 20_000, "STREAMS", "stream", "$")
        await asyncio.sleep(0.05)
        demote(two[0], two[1])
        with pytest.raises(StoreFault) as fault:
            await asyncio.wait_for(blocked, 15)
        assert isinstance(fault.value, StoreDemoted | StoreUnavailable)
        await until(lambda: not pipe.is_up)
        promote(two[0])
        async with asyncio.timeout(PATIENCE_S):
            await pipe.wait_up()


async def test_a_script_on_a_demoted_master(two: tuple[RedisServer, RedisServer]) -> None:
    async with pipe_to(two[0].url) as pipe:
        demote(two[0], two[1])
        with pytest.raises(StoreDemoted):
            await pipe.ask("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "key")
