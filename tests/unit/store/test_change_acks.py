"""A change is waited for until every other worker has acknowledged it, and not forever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from moldau.broker.errors import StoreFault
from moldau.broker.store import change_acks, keys
from moldau.broker.store.change_acks import Acknowledgement, ChangeAcks
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.topics import Change, TopicStore, read_acknowledgement, read_change
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_acks, "PATIENCE_S", 0.05)


def expected(changes: ChangeAcks) -> int:
    """A change that is announced, and whose announcement this worker has read."""
    number = changes.expect()
    assert number is not None
    changes.announced(number)
    return number


async def is_waiting(changes: ChangeAcks) -> bool:
    waiting = asyncio.ensure_future(changes.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_done = waiting.done()
    waiting.cancel()
    return not is_done


async def test_a_single_worker_waits_for_none() -> None:
    changes = ChangeAcks(0, 1)
    assert changes.expect() is None
    await changes.wait()


async def test_a_change_is_applied_when_all_others_acknowledged_it_in_any_order() -> None:
    changes = ChangeAcks(1, 3)
    first, second = expected(changes), expected(changes)
    for number, worker in ((second, 0), (first, 2), (second, 2), (second, 2)):
        changes.acknowledged(Acknowledgement(number, worker))
        assert await is_waiting(changes)
    changes.acknowledged(Acknowledgement(first, 0))
    assert not await is_waiting(changes)


async def test_acknowledgements_of_a_former_process_count_for_nothing() -> None:
    former = expected(ChangeAcks(0, 2))
    changes = ChangeAcks(0, 2)
    assert expected(changes) != former
    changes.acknowledged(Acknowledgement(former, 1))
    assert await is_waiting(changes)


@pytest.mark.usefixtures("short_patience")
async def test_a_silent_worker_is_waited_for_once_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = ChangeAcks(0, 3)
    late = expected(changes)
    changes.acknowledged(Acknowledgement(late, 1))
    began = time.monotonic()
    await changes.wait()
    assert time.monotonic() - began > 0.04
    assert "by worker 2" in caplog.text
    # The next one waits for worker 1 only.
    changes.acknowledged(Acknowledgement(expected(changes), 1))
    assert not await is_waiting(changes)
    changes.acknowledged(Acknowledgement(late, 2))
    changes.acknowledged(Acknowledgement(expected(changes), 1))
    assert await is_waiting(changes)


@pytest.mark.usefixtures("short_patience")
async def test_a_worker_that_started_again_is_waited_for() -> None:
    changes = ChangeAcks(0, 2)
    expected(changes)
    await changes.wait()
    expected(changes)
    assert not await is_waiting(changes)
    changes.started(1)
    expected(changes)
    assert await is_waiting(changes)


@pytest.mark.usefixtures("short_patience")
async def test_a_worker_that_starts_while_a_change_is_announced_is_waited_for() -> None:
    """It is not known to be running when the change is made, but before it in the stream."""
    changes = ChangeAcks(0, 2)
    expected(changes)
    await changes.wait()
    number = changes.expect()
    assert number is not None
    assert await is_waiting(changes)
    changes.started(1)
    changes.announced(number)
    assert await is_waiting(changes)
    changes.acknowledged(Acknowledgement(number, 1))
    assert not await is_waiting(changes)


async def test_a_worker_that_starts_behind_a_change_loads_it() -> None:
    changes = ChangeAcks(0, 3)
    number = expected(changes)
    changes.acknowledged(Acknowledgement(number, 2))
    assert await is_waiting(changes)
    changes.started(1)
    assert not await is_waiting(changes)


# --- announcing through the store ---


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Pipe]:
    pipe = Pipe(Connector(url), "control")
    await pipe.connect()
    yield pipe
    pipe.close()
    await asyncio.sleep(0.01)


async def test_announced_and_acknowledged_in_a_full_store(server: RedisServer) -> None:
    async with connected(server.url) as pipe:
        announcer, other = TopicStore(pipe, 0, 2), TopicStore(pipe, 1, 2)
        await pipe.call("CONFIG", "SET", "maxmemory", 1)
        try:
            await announcer.announce(Change("topic", "some"))
            (entry,) = await pipe.call("XREVRANGE", keys.CHANGES, "+", "-", "COUNT", 1)
            change = read_change(entry[1][1])
            assert (change.name, change.worker) == ("some", 0)
            announcer.read_in_order(change)
            await announcer.acknowledge(change)  # its own: nothing to send
            await other.acknowledge(change)
        finally:
            await pipe.call("CONFIG", "SET", "maxmemory", 0)
        ((_, (field, value)),) = await pipe.call("XRANGE", keys.wake(0), "-", "+")
        assert field == b"a"
        assert await is_waiting(announcer.change_acks)
        announcer.change_acks.acknowledged(read_acknowledgement(value))
        assert not await is_waiting(announcer.change_acks)
        await announcer.announce(Change("start", "some", 0))
        assert not await is_waiting(announcer.change_acks)


async def test_a_change_that_could_not_be_announced_is_not_waited_for(server: RedisServer) -> None:
    async with connected(server.url) as pipe:
        announcer = TopicStore(pipe, 0, 2)
        pipe.close()
        await asyncio.sleep(0.01)
        with pytest.raises(StoreFault):
            await announcer.announce(Change("config"))
        assert not await is_waiting(announcer.change_acks)
