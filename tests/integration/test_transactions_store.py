"""Records of transactional ids in a real store: what it keeps, what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
import redis

from moldau.broker.errors import (
    SlotNotTaken,
    StoreDown,
    StoreFenced,
    StoreRefused,
    StoreUnavailable,
)
from moldau.broker.store import keys
from moldau.broker.store.store import Store
from moldau.broker.store.transactions import READ_AT_ONCE
from tests.support.drivers.group_shell import stored
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer

SLOT = 7


@contextlib.asynccontextmanager
async def owner(server: RedisServer, url: str | None = None) -> AsyncIterator[Store]:
    """A store whose slot is taken."""
    store = Store(url or server.url, 0)
    await store.connect()
    try:
        await store.groups.take([SLOT], "test")
        yield store
    finally:
        store.close()


async def test_what_is_saved_is_loaded(server: RedisServer) -> None:
    name = "of any: characters % and ü"
    async with owner(server) as store:
        await stored(partial(store.transactions.save, SLOT, name, 1, b"first"))
        await stored(partial(store.transactions.save, SLOT, name, 2, b"second"))
        await stored(partial(store.transactions.save, SLOT, "other", 5, b"other"))
    async with owner(server) as again:
        found = await again.transactions.load(SLOT)
        assert sorted(found) == [(name, b"second"), ("other", b"other")]
        assert await again.transactions.revisions(SLOT, [name, "unknown", "other"]) == [2, 0, 5]
        await stored(partial(again.transactions.remove, SLOT, name, 3))
        assert await again.transactions.load(SLOT) == [("other", b"other")]
        assert await again.transactions.index(SLOT) == ["other"]


async def test_more_than_is_read_at_once(server: RedisServer) -> None:
    names = [f"many-{number}" for number in range(2 * READ_AT_ONCE + 3)]
    async with owner(server) as store:
        await asyncio.gather(
            *(
                stored(partial(store.transactions.save, SLOT, name, 1, name.encode()))
                for name in names
            )
        )
        found = await store.transactions.load(SLOT)
        assert {one for one in found if one[0].startswith("many")} == {
            (name, name.encode()) for name in names
        }


async def test_a_revision_that_is_not_newer_is_refused(server: RedisServer) -> None:
    async with owner(server) as store:
        await stored(partial(store.transactions.save, SLOT, "revised", 4, b"four"))
        for revision in (3, 4):
            with pytest.raises(StoreRefused):
                await stored(partial(store.transactions.save, SLOT, "revised", revision, b"late"))
        with pytest.raises(StoreRefused):
            await stored(partial(store.transactions.remove, SLOT, "revised", 3))
        assert ("revised", b"four") in await store.transactions.load(SLOT)
        # After a removal an id begins again.
        await stored(partial(store.transactions.remove, SLOT, "revised", 5))
        await stored(partial(store.transactions.save, SLOT, "revised", 1, b"again"))
        assert ("revised", b"again") in await store.transactions.load(SLOT)


async def test_a_worker_that_was_replaced_is_refused(server: RedisServer) -> None:
    async with owner(server) as sleeper:
        await stored(partial(sleeper.transactions.save, SLOT, "fenced", 1, b"one"))
        async with owner(server) as heir:
            await stored(partial(heir.transactions.save, SLOT, "fenced", 2, b"two"))
            with pytest.raises(StoreFenced):
                await stored(partial(sleeper.transactions.save, SLOT, "fenced", 3, b"three"))
            with pytest.raises(StoreFenced):
                await stored(partial(sleeper.transactions.remove, SLOT, "fenced", 3))
            assert ("fenced", b"two") in await heir.transactions.load(SLOT)


async def test_a_slot_that_is_not_taken(server: RedisServer) -> None:
    async with owner(server) as store:
        with pytest.raises(SlotNotTaken):
            await stored(partial(store.transactions.save, SLOT + 1, "elsewhere", 1, b"one"))
        assert await store.transactions.load(SLOT + 1) == []


async def test_a_write_that_a_lost_connection_delivers_late(server: RedisServer) -> None:
    async with StoreProxy(server.port) as proxy, owner(server, proxy.url) as store:
        await stored(partial(store.transactions.save, SLOT, "late", 1, b"one"))
        link = await proxy.link("moldau-0-groups")
        link.requests.hold()
        saving = asyncio.ensure_future(
            stored(partial(store.transactions.save, SLOT, "late", 2, b"two"))
        )
        async with asyncio.timeout(20):
            while not link.requests.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            link.cut_client()
            with pytest.raises(StoreUnavailable):
                await saving
            with pytest.raises(StoreDown):
                await stored(partial(store.transactions.save, SLOT, "late", 2, b"two"))
            await store.groups.wait_up()
            await store.groups.take([SLOT], "test")
            link.requests.release()
            assert link.server is not None
            while not link.server.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        assert ("late", b"one") in await store.transactions.load(SLOT)


async def test_a_full_store_without_its_scripts(server: RedisServer) -> None:
    """A transaction has to end there too, or its readers would wait forever."""
    with redis.Redis.from_url(server.url) as raw:
        async with owner(server) as store:
            await stored(partial(store.transactions.save, SLOT, "full", 1, b"one"))
            raw.config_set("maxmemory", 1)
            raw.script_flush()
            try:
                await stored(partial(store.transactions.save, SLOT, "full", 2, b"two"))
                await stored(partial(store.transactions.save, SLOT, "full and new", 1, b"new"))
                assert raw.hget(keys.transaction(SLOT, "full").decode(), "record") == b"two"
                await stored(partial(store.transactions.remove, SLOT, "full", 3))
                assert not raw.exists(keys.transaction(SLOT, "full"))
            finally:
                raw.config_set("maxmemory", 0)
