"""One owner per slot: what others write, late or asleep, the store refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from moldau.broker.coordinator.runtime import slots
from moldau.broker.errors import ErrorCode, SlotNotTaken, StoreFenced, StoreFull, StoreRefused
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.store.store import Store
from tests.support.drivers.group_shell import Shell, shell
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer, running_redis

AWAY = ErrorCode.NOT_COORDINATOR


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


def owner(client: redis.Redis, slot: int) -> tuple[str, int]:
    found: list[Any] = client.hmget(keys.slot(slot).decode(), "owner", "epoch")
    return found[0].decode(), int(found[1])


async def settled(own: Shell, group: str) -> None:
    async with asyncio.timeout(30):
        while own.coordinator.groups.availability(group):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_take_raises_the_epoch(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        first = [owner(raw, slot) for slot in range(50)]
        assert {name.partition(",")[0] for name, _ in first} == {"worker 0"}
        held = own.coordinator._store
        assert [epoch for _, epoch in first] == [held.held(slot) for slot in range(50)]
    async with shell(server):
        second = [owner(raw, slot) for slot in range(50)]
    assert all(later > before for (_, before), (_, later) in zip(first, second, strict=True))


async def test_a_worker_that_was_replaced_is_refused_and_gives_up(server: RedisServer) -> None:
    """It slept, and knows nothing of the other until it writes."""
    name = "slept through"
    async with shell(server) as sleeper:
        joined = await sleeper.stable(name)
        await sleeper.commit(name, 5)
        async with shell(server) as heir:
            assert heir.offset(name) == 5
            await heir.commit(name, 6)

            with pytest.raises(StoreFenced):
                await sleeper.commit(name, 7)
            async with asyncio.timeout(30):
                while sleeper.coordinator.groups.availability(name) != AWAY:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            assert (await sleeper.join(name, joined.member_id)).error == AWAY
            await heir.commit(name, 8)
        # By placement the slot is its own: it takes it back, with what the other has written.
        await settled(sleeper, name)
        assert sleeper.offset(name) == 8
        assert sleeper.coordinator.groups.by_id[name].generation_id == joined.generation_id
        await sleeper.commit(name, 9)
    async with shell(server) as again:
        assert again.offset(name) == 9


async def test_a_record_of_a_worker_that_was_replaced(server: RedisServer) -> None:
    name = "two records"
    async with shell(server) as sleeper:
        joined = await sleeper.stable(name)
        async with shell(server) as heir:
            ours = await heir.join(name, joined.member_id)
            assert (await heir.sync(name, ours)).error == 0
            assert ours.generation_id == joined.generation_id + 1

            theirs = await sleeper.join(name, joined.member_id)
            assert (await sleeper.sync(name, theirs)).error == AWAY
        await settled(sleeper, name)
        assert sleeper.coordinator.groups.by_id[name].generation_id == ours.generation_id


async def test_deletions_of_a_worker_that_was_replaced(server: RedisServer) -> None:
    async with shell(server) as sleeper:
        for name in ("deleted", "dropped"):
            await sleeper.commit(name, 5)
        async with shell(server) as heir:
            assert await sleeper.coordinator.delete("deleted") == AWAY
            with pytest.raises(StoreFenced):
                await sleeper.coordinator.offsets.drop(
                    "dropped", [place for place, _ in sleeper.coordinator.groups.offsets["dropped"]]
                )
            for name in ("deleted", "dropped"):
                await heir.commit(name, 6)
    async with shell(server) as again:
        assert (again.offset("deleted"), again.offset("dropped")) == (6, 6)


async def test_a_reconnected_worker_takes_its_slots_again(
    server: RedisServer, raw: redis.Redis
) -> None:
    name = "reconnected"
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        joined = await own.stable(name)
        before = owner(raw, slot_of(name))
        store = own.coordinator._store
        (await proxy.link("moldau-0-groups")).cut()
        async with asyncio.timeout(30):
            for is_up in (False, True):
                while store.is_up != is_up:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        with pytest.raises(SlotNotTaken):
            await own.commit(name, 5)
        # A group's record waits until the slot is taken.
        joined = await own.join(name, joined.member_id)
        assert (await own.sync(name, joined)).error == 0
        await own.commit(name, 6)
        assert owner(raw, slot_of(name)) > before


async def test_the_store_may_lose_its_scripts(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        await own.commit("scripted", 1)
        raw.script_flush()
        await own.commit("scripted", 2)
        await own.stable("also scripted")
        raw.script_flush()
        # Sent together: the first cannot be sent again, or it would undo the second.
        outcomes = await asyncio.gather(
            own.commit("scripted", 3), own.commit("scripted", 4), return_exceptions=True
        )
        assert isinstance(outcomes[0], StoreRefused)
        assert outcomes[1] is None
    async with shell(server) as again:
        assert again.offset("scripted") == 4


async def test_more_offsets_than_one_call_of_lua_takes(server: RedisServer) -> None:
    places = [("large", partition) for partition in range(10_000)]
    async with shell(server) as own:
        await own.commit("many", 5, *places)
    async with shell(server) as again:
        offsets = again.coordinator.groups.offsets["many"]
        assert len(list(offsets)) == 10_000
        gone = [place for place, _ in offsets if place.partition >= 10]
        await again.coordinator.offsets.drop("many", gone)
    async with shell(server) as last:
        assert len(list(last.coordinator.groups.offsets["many"])) == 10


async def test_a_full_store(server: RedisServer, raw: redis.Redis) -> None:
    """Groups are loaded and can be deleted; commits are refused with the reason."""
    async with shell(server) as own:
        await own.commit("full", 5, ("t", 0), ("t", 1))
        raw.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await own.commit("full", 6)
            joined = await own.join("new")
            assert (await own.sync("new", joined)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            async with shell(server) as again:
                assert again.offset("full") == 5
                places = [place for place, _ in again.coordinator.groups.offsets["full"]]
                await again.coordinator.offsets.drop("full", places[:1])
                assert await again.coordinator.delete("full") == 0
        finally:
            raw.config_set("maxmemory", 0)
    async with shell(server) as last:
        assert "full" not in last.coordinator.groups.by_id


async def test_a_user_that_may_not_touch_other_connections(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command(
            *("ACL", "SETUSER", "moldau", "on", ">secret", "~*", "&*", "+@all"),
            *("-client|kill", "-client|list", "-script"),
        )
        url = f"redis://moldau:secret@127.0.0.1:{server.port}"
        async with shell(server, url) as own:
            await own.commit("limited", 5)
            client.script_flush()
            await own.commit("limited", 6)
        async with shell(server, url) as again:
            assert again.offset("limited") == 6


async def test_workers_take_only_what_is_theirs(server: RedisServer) -> None:
    stores = [Store(f"{server.url}/3", worker, 2) for worker in range(2)]
    for store in stores:
        await store.connect()
    try:
        await stores[0].groups.take(range(0, 50, 2), "first")
        await stores[1].groups.take(range(1, 50, 2), "second")
        await stores[0].groups.save_offsets(0, "a", {b"t:0": b"x"})
        await stores[1].groups.save_offsets(1, "b", {b"t:0": b"y"})
        with pytest.raises(SlotNotTaken):
            await stores[1].groups.save_offsets(0, "a", {b"t:0": b"z"})
        assert await stores[1].groups.offset(0, "a", b"t:0") == b"x"
    finally:
        for store in stores:
            store.close()


async def test_two_that_both_think_a_slot_theirs(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take it from each other; no commit that was acknowledged is lost or undone."""
    monkeypatch.setattr(slots, "TAKE_BACK_S", 0.02)
    name = "contested"
    async with shell(server) as one, shell(server) as other:
        acknowledged = 0
        for offset in range(1, 60):
            own = one if offset % 3 else other
            try:
                await own.commit(name, offset)
            except StoreRefused:
                await asyncio.sleep(0.01)
            else:
                acknowledged = offset
        assert acknowledged
        async with shell(server) as last:
            assert last.offset(name) == acknowledged


async def test_more_workers_than_slots(server: RedisServer) -> None:
    store = Store(server.url, 60, 64)
    await store.connect()
    try:
        assert await store.groups.take(range(60, 50, 64), "without any") == {}
    finally:
        store.close()


async def test_writes_while_a_slot_is_taken_again(server: RedisServer) -> None:
    """None of them is fenced off by the worker's own take."""
    async with shell(server) as own:
        joined = await own.stable("busy")
        for _ in range(5):
            own.coordinator.slots.fenced(slot_of("busy"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            joined = await own.join("busy", joined.member_id)
            outcome = await asyncio.gather(own.commit("busy", 5), return_exceptions=True)
            assert not isinstance(outcome[0], StoreFenced)
            assert (await own.sync("busy", joined)).error == 0
        assert own.coordinator.groups.by_id["busy"].generation_id == joined.generation_id
