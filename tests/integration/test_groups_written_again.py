"""A store that lost its tail, or everything: a living owner writes its groups again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from moldau.broker.errors import ErrorCode, SlotNotTaken
from moldau.broker.group.group_base import LIMIT, ORIGIN_S
from moldau.broker.group.offsets import TopicPartition
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from tests.support.drivers.group_shell import Shell, shell
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def remember(client: redis.Redis) -> Callable[[], None]:
    """What the store has now; calling the result brings it back, and nothing else."""
    dumps = {key: client.dump(key) for key in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for key, value in dumps.items():
            assert value is not None
            client.restore(key, 0, value)

    return restore


def groups_of(own: Shell) -> dict[str, tuple[object, ...]]:
    """All that a restart keeps."""
    return {
        name: (
            group.identity,
            group.state,
            group.generation_id,
            sorted(member.member_id for member in group.describe().members),
            sorted(own.coordinator.groups.offsets[name]),
        )
        for name, group in own.coordinator.groups.by_id.items()
    }


async def test_what_the_store_lost_is_written_again(
    server: RedisServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with shell(server) as own:
        await own.stable("unchanged")
        await own.commit("unchanged", 1)
        older = await own.stable("older")
        await own.commit("older", 1, ("t", 0), ("t", 1), ("gone", 0))
        await own.commit("deleted", 1)
        lasting = await own.stable("deleted too")
        await own.leave("deleted too", lasting)
        restore = remember(raw)
        newer = await own.join("older", older.member_id)
        assert (await own.sync("older", newer)).error == 0
        await own.commit("older", 9, ("t", 1), ("t", 2))
        await own.coordinator.offsets.drop("older", [TopicPartition("gone", 0)])
        await own.stable("missing")
        await own.commit("missing too", 7)
        for name in ("deleted", "deleted too"):
            assert await own.coordinator.delete(name) == 0
        known = groups_of(own)
        restore()

        await own.coordinator.slots.store_changed()

        assert groups_of(own) == known
        assert "had lost something of 5 groups" in caplog.text
        await own.commit("older", 10)
    async with shell(server) as again:
        found = groups_of(again)
        known["older"] = (*known["older"][:-1], found["older"][-1])
        assert found == known
        assert again.offset("older") == 10
        assert again.offset("older", "t", 2) == 9
        assert again.offset("older", "gone", 0) is None
    assert not raw.smembers(keys.groups(slot_of("deleted")).decode()) & {b"deleted"}


async def test_an_emptied_store(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        joined = await own.stable("kept")
        await own.commit("kept", 5)
        await own.commit("simple", 6)
        known = groups_of(own)
        raw.flushall()
        await own.coordinator.slots.store_changed()
        await own.quiet()
        assert own.coordinator.groups.by_id["kept"].generation_id == joined.generation_id
    async with shell(server) as again:
        assert groups_of(again) == known


async def test_a_write_that_finds_the_store_emptied_mends_it(
    server: RedisServer, raw: redis.Redis
) -> None:
    """The write comes before anything has noticed the loss."""
    async with shell(server) as own:
        joined = await own.stable("kept")
        await own.commit("kept", 5)
        raw.flushall()
        joined = await own.join("kept", joined.member_id)
        assert (await own.sync("kept", joined)).error == 0
    async with shell(server) as again:
        assert again.offset("kept") == 5
        assert again.coordinator.groups.by_id["kept"].generation_id == joined.generation_id


async def test_commits_wait_until_it_is_done(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        await own.commit("busy", 5)
        reacquiring = asyncio.ensure_future(own.coordinator.slots.store_changed())
        await asyncio.sleep(0)
        with pytest.raises(SlotNotTaken):
            await own.commit("busy", 6)
        assert own.offset("busy") == 5
        assert (await own.join("busy")).error == 0
        await reacquiring
        await own.commit("other", 7)


async def test_another_store_id_after_a_lost_connection(
    server: RedisServer, raw: redis.Redis
) -> None:
    """It need not be said: the store id of the new connection tells."""
    async with (
        StoreProxy(server.port) as proxy,
        shell(server, proxy.url, store_id=b"first") as own,
    ):
        restore = remember(raw)
        await own.commit("kept", 5)
        restore()
        own.coordinator._store._pipe.store_id = b"second"
        (await proxy.link("moldau-0-groups")).cut()
        await written(raw, "kept")
        assert not raw.exists(keys.group(slot_of("none"), "none"))
    async with shell(server, store_id=b"second") as again:
        assert again.offset("kept") == 5


async def written(client: redis.Redis, group: str) -> None:
    async with asyncio.timeout(30):
        while not client.exists(keys.offsets(slot_of(group), group)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_another_owner_meanwhile_is_believed(server: RedisServer, raw: redis.Redis) -> None:
    async with shell(server) as own:
        await own.commit("taken", 5)
        async with shell(server) as other:
            await other.commit("taken", 6)
        await own.coordinator.slots.store_changed()
        assert own.coordinator.groups.availability("taken") == ErrorCode.NOT_COORDINATOR
        async with asyncio.timeout(30):
            while own.coordinator.groups.availability("taken"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert own.offset("taken") == 6


async def test_generations_go_on_above_what_members_have_seen(
    server: RedisServer, raw: redis.Redis
) -> None:
    """Store and worker lost what happened last: nothing says how far the generations had come."""
    async with shell(server, store_id=b"first") as own:
        joined = await own.stable("g")
        restore = remember(raw)
        for _ in range(3):
            joined = await own.join("g", joined.member_id)
            assert (await own.sync("g", joined)).error == 0
        assert joined.generation_id == 4
        restore()
        own.coordinator._store._held.clear()  # it dies here: nothing is written again
    async with shell(server, store_id=b"second") as heir:
        assert heir.coordinator.groups.by_id["g"].generation_id == 1
    # That worker dies too, before the group has come to a new generation.
    async with shell(server, store_id=b"second") as again:
        later = await again.join("g", joined.member_id)
        assert joined.generation_id < later.generation_id < LIMIT
        assert abs(later.generation_id - (time.time() - ORIGIN_S) / 60) < 600
        assert (await again.sync("g", later)).error == 0
        following = await again.join("g", joined.member_id)
        assert following.generation_id == later.generation_id + 1


async def test_generations_under_the_same_store_id_are_counted(
    server: RedisServer, raw: redis.Redis
) -> None:
    async with shell(server, store_id=b"first") as own:
        joined = await own.stable("g")
    async with shell(server, store_id=b"first") as again:
        assert (await again.join("g", joined.member_id)).generation_id == 2


async def test_a_thousand_groups(
    server: RedisServer, raw: redis.Redis, record_property: Callable[[str, object], None]
) -> None:
    places = [("orders", partition) for partition in range(100)]
    async with shell(server) as own:
        names = [f"group-{number}" for number in range(1000)]
        await asyncio.gather(*(own.stable(name) for name in names))
        await asyncio.gather(*(own.commit(name, 5, *places) for name in names))
        known = groups_of(own)
        for what in ("everything is there", "everything is lost"):
            begun = time.perf_counter()
            await own.coordinator.slots.store_changed()
            took = time.perf_counter() - begun
            record_property(what, round(took, 3))
            assert took < 60, what  # about half a second, on a machine that does nothing else
            raw.flushall()
        await own.coordinator.slots.store_changed()
    async with shell(server) as again:
        assert groups_of(again) == known
