"""The shell of groups on a real store: what it keeps, what it lets go, what it never claims."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from itertools import pairwise

import pytest
import redis

from moldau.broker.errors import StoreRefused, StoreUnavailable
from moldau.broker.group.group_base import LIMIT, ORIGIN_S
from moldau.broker.group.offsets import TopicPartition, new_commit
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.store.groups import GONE_SECONDS
from tests.support.drivers.group_shell import Shell, shell, stored
from tests.support.stores.proxy import Link, StoreProxy
from tests.support.stores.redis_server import RedisServer

NOT_AVAILABLE = 15
REFUSED = b":-1\r\n"


async def test_2_25_an_empty_group_without_offsets_is_forgotten(server: RedisServer) -> None:
    async with shell(server) as own:
        groups = own.coordinator.groups
        for name in ("left", "kept", "there"):
            joined = await own.join(name)
            assert (await own.sync(name, joined)).error == 0
            if name != "there":
                await own.leave(name, joined)
        place = TopicPartition("orders", 0)
        await own.coordinator.offsets.commit(
            "kept", {place: new_commit(7, own.coordinator.now_ms())}
        )

        await own.coordinator.offsets.expire()

        assert set(groups.by_id) == {"kept", "there"}
        # Whatever takes the last offset: then it is forgotten too.
        await own.coordinator.offsets.topic_deleted("orders")
        await own.coordinator.offsets.expire()
        assert set(groups.by_id) == {"there"}
    async with shell(server) as again:
        assert set(again.coordinator.groups.by_id) == {"there"}


async def test_2_25_groups_that_go_while_others_are_seen_to(server: RedisServer) -> None:
    async with shell(server) as own:
        names = [f"simple-{number}" for number in range(20)]
        long_ago = own.coordinator.now_ms() - 2 * 3_600_000
        for name in names:
            await own.coordinator.offsets.commit(
                name, {TopicPartition("t", 0): new_commit(1, long_ago)}
            )

        await asyncio.gather(
            own.coordinator.offsets.expire(), *(own.coordinator.delete(name) for name in names[10:])
        )

        assert not set(names) & set(own.coordinator.groups.by_id)


async def test_2_16_a_record_the_store_does_not_take_is_not_acknowledged(
    server: RedisServer,
) -> None:
    """A write of a predecessor arrived after we had read: the store knows more than we do."""

    async with shell(server) as own:
        name = "overtaken"
        joined = await own.join(name)
        assert (await own.sync(name, joined)).error == 0
        with redis.Redis.from_url(server.url) as client:
            key = keys.group(slot_of(name), name).decode()
            revision = int(client.hget(key, "revision") or 0)
            client.hset(key, "revision", str(revision + 1))
        identity = own.coordinator.groups.by_id[name].identity
        with pytest.raises(StoreRefused):
            await stored(
                partial(
                    own.coordinator._store.save,
                    slot_of(name),
                    name,
                    identity,
                    revision + 1,
                    b"older",
                    {},
                )
            )

        joined = await own.join(name, joined.member_id)
        assert (await own.sync(name, joined)).error == NOT_AVAILABLE

        # And it goes on: the next record is newer than anything.
        joined = await own.join(name, joined.member_id)
        assert (await own.sync(name, joined)).error == 0
    async with shell(server) as again:
        assert again.coordinator.groups.by_id[name].generation_id == joined.generation_id


async def test_2_23_a_deleted_group_is_not_brought_back_by_a_late_write(
    server: RedisServer,
) -> None:
    """The connection is lost with a write under way; what it held arrives after the deletion, and
    once more after others have come together under the same id."""

    name = "late"
    async with StoreProxy(server.port) as proxy, shell(server, proxy.url) as own:
        joined = await own.join(name)
        assert (await own.sync(name, joined)).error == 0
        first = own.coordinator.groups.by_id[name].identity
        link = await proxy.link("moldau-0-groups")
        link.requests.hold()
        joined = await own.join(name, joined.member_id)
        syncing = asyncio.ensure_future(own.sync(name, joined))
        while not link.requests.waiting:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.002)
        held = bytes(link.requests._buffer)
        link.cut_client()
        assert (await syncing).error == NOT_AVAILABLE
        await _back(own)
        await own.leave(name, joined)
        assert await own.coordinator.delete(name) == 0

        link.requests.release()
        assert _delivered(server, held).endswith(REFUSED)

        assert _stored(server, name) == (None, None)
        async with shell(server) as again:  # which takes over
            assert name not in again.coordinator.groups.by_id
        while (  # noqa: ASYNC110
            (joined := await own.join(name)).error or (await own.sync(name, joined)).error
        ):
            await asyncio.sleep(0.05)  # it is refused, gives the slot up and takes it back
        assert _delivered(server, held).endswith(REFUSED)
        second = own.coordinator.groups.by_id[name].identity
        assert second != first
        assert _stored(server, name)[0] == second.encode()
    async with shell(server) as again:
        assert again.coordinator.groups.by_id[name].identity == second
        assert again.coordinator.groups.by_id[name].generation_id == joined.generation_id


async def test_2_23_a_late_deletion_spares_who_came_after_it(server: RedisServer) -> None:
    name = "once more"
    async with shell(server) as own:
        store, slot = own.coordinator._store, slot_of(name)
        await stored(partial(store.save, slot, name, "cgp_first", 4, b"first", {}))
        await store.remove(slot, name, "cgp_first")
        await stored(partial(store.save, slot, name, "cgp_second", 1, b"second", {}))

        await store.remove(slot, name, "cgp_first")

        assert _stored(server, name) == (b"cgp_second", b"second")
        with pytest.raises(StoreRefused):
            await stored(partial(store.save, slot, name, "cgp_first", 5, b"first", {}))
        await store.remove(slot, name, "cgp_second")
        for identity in ("cgp_first", "cgp_second"):
            with pytest.raises(StoreRefused):
                await stored(partial(store.save, slot, name, identity, 9, b"late", {}))
        assert _stored(server, name) == (None, None)
        with redis.Redis.from_url(server.url) as client:  # what is remembered is not forever
            assert 0 < int(client.ttl(keys.group(slot, name).decode())) <= GONE_SECONDS
        assert await store.load(slot) == []


async def test_2_23_offsets_of_a_deleted_group_are_not_brought_back_by_a_late_commit(
    server: RedisServer,
) -> None:
    """A simple consumer's, whose group has no record: the connection is lost with a commit under
    way, and what it held is sent on after the deletion."""

    name, place = "simple and late", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            await own.coordinator.offsets.commit(
                name, {place: new_commit(5, own.coordinator.now_ms())}
            )
            link = await _hold_a_commit(proxy, own, name, place)
            await _back(own)
            assert await own.coordinator.delete(name) == 0

            await _deliver(link)
        async with shell(server) as again:
            assert name not in again.coordinator.groups.by_id


async def test_2_23_a_late_commit_of_a_worker_that_was_replaced(server: RedisServer) -> None:
    """Nothing of it is known to the one that comes after."""

    name, place = "inherited", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            await own.coordinator.offsets.commit(
                name, {place: new_commit(5, own.coordinator.now_ms())}
            )
            link = await _hold_a_commit(proxy, own, name, place)
        async with shell(server) as heir:
            assert _offset(heir, name, place) == 5
            assert await heir.coordinator.delete(name) == 0
            await _deliver(link)
        async with shell(server) as again:
            assert name not in again.coordinator.groups.by_id


async def test_2_23_a_late_commit_does_not_undo_a_newer_one(server: RedisServer) -> None:
    name, place = "newer", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            link = await _hold_a_commit(proxy, own, name, place)
            await _back(own)
            await own.coordinator.offsets.commit(
                name, {place: new_commit(2, own.coordinator.now_ms())}
            )
            await _deliver(link)
        async with shell(server) as again:
            assert _offset(again, name, place) == 2


async def test_2_23_a_late_deletion_spares_offsets_committed_after_it(server: RedisServer) -> None:
    name, place = "spared", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            await own.coordinator.offsets.commit(
                name, {place: new_commit(5, own.coordinator.now_ms())}
            )
            while _stored(server, name)[0] is None:  # noqa: ASYNC110 (its record comes later)
                await asyncio.sleep(0.002)
            link = await proxy.link("moldau-0-groups")
            link.requests.hold()
            deleting = asyncio.ensure_future(own.coordinator.delete(name))
            await _cut_when_held(link)
            assert await deleting == NOT_AVAILABLE
            await _back(own)
            await own.coordinator.offsets.commit(
                name, {place: new_commit(6, own.coordinator.now_ms())}
            )
            await _deliver(link)
        async with shell(server) as again:
            assert _offset(again, name, place) == 6


async def _hold_a_commit(proxy: StoreProxy, own: Shell, name: str, place: TopicPartition) -> Link:
    """A commit of offset 9 that the worker has given up, and that still is on its way."""
    link = await proxy.link("moldau-0-groups")
    link.requests.hold()
    committing = asyncio.ensure_future(
        own.coordinator.offsets.commit(name, {place: new_commit(9, own.coordinator.now_ms())})
    )
    await _cut_when_held(link)
    with pytest.raises(StoreUnavailable):
        await committing
    return link


async def _cut_when_held(link: Link) -> None:
    while not link.requests.waiting:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.002)
    link.cut_client()


async def _back(own: Shell) -> None:
    """Wait until it has taken its slots on another connection."""
    store = own.coordinator._store
    async with asyncio.timeout(30):
        while not store.is_up or not store._taken:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def _deliver(link: Link) -> None:
    """Send on what is held, and wait until the store has read it or closed the connection."""
    assert link.requests.waiting
    link.requests.release()
    assert link.server is not None
    async with asyncio.timeout(30):
        while not link.server.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)


def _offset(own: Shell, name: str, place: TopicPartition) -> int | None:
    offsets = own.coordinator.groups.offsets.get(name)
    committed = None if offsets is None else offsets.get(*place)
    return None if committed is None else committed.offset


def _delivered(server: RedisServer, commands: bytes) -> bytes:
    """The store's replies to bytes of a connection that is gone."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as late:
        late.sendall(commands)
        late.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: late.recv(4096), b""))


def _stored(server: RedisServer, name: str) -> tuple[bytes | None, bytes | None]:
    with redis.Redis.from_url(server.url) as client:
        key = keys.group(slot_of(name), name).decode()
        identity, record = client.hmget(key, "identity", "record")
        return identity, record


# --- the floor of generations ---


def _slot_facts(client: redis.Redis, slot: int) -> dict[str, int]:
    found = client.hmget(keys.slot(slot).decode(), "floor", "top")
    return {name: int(value or 0) for name, value in zip(("floor", "top"), found, strict=True)}


async def test_2_26_the_lowest_generation_is_above_all_that_was_stored_and_below_the_limit(
    server: RedisServer,
) -> None:
    name = "floors"
    slot = slot_of(name)
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        async with shell(server, store_id=b"first") as own:
            store = own.coordinator._store
            await stored(partial(store.save, slot, name, "cgp_1", 1, b"", {}, generation=7))
            await stored(partial(store.save, slot, name, "cgp_1", 2, b"", {}, generation=6))
            await stored(
                partial(store.save, slot, name, "cgp_1", 3, b"", {}, generation=217_000_000)
            )
            assert _slot_facts(client, slot) == {"floor": 0, "top": 7}
            await store.remove(slot, name, "cgp_1")
        minutes = (int(time.time()) - ORIGIN_S) // 60
        floors = []
        dumps = []
        for store_id in (b"second", b"third", b"fourth"):
            dumps.append(client.dump(keys.slot(slot).decode()))
            async with shell(server, store_id=store_id) as own:
                floors.append(own.coordinator._store.min_generation(slot))
        assert minutes <= floors[0] < minutes + 100
        assert all(later >= before + 10_000 for before, later in pairwise(floors))

        # A group has begun more generations than minutes went by.
        async with shell(server, store_id=b"fourth") as own:
            store = own.coordinator._store
            assert store.min_generation(slot) == floors[-1], "nothing was lost"
            await stored(
                partial(store.save, slot, name, "cgp_2", 1, b"", {}, generation=floors[-1] + 5_000)
            )
            await store.remove(slot, name, "cgp_2")
        async with shell(server, store_id=b"fifth") as own:
            assert floors[-1] + 15_000 <= own.coordinator._store.min_generation(slot) < LIMIT

        # The next loss takes all traces of this one.
        assert dumps[0] is not None
        client.restore(keys.slot(slot).decode(), 0, dumps[0], replace=True)
        await asyncio.sleep(1.1)
        async with shell(server, store_id=b"sixth") as own:
            assert own.coordinator._store.min_generation(slot) > floors[0]

        # Left by an earlier version.
        client.hset(keys.slot(slot).decode(), "floor", 217_000_000)
        async with shell(server, store_id=b"sixth") as own:
            assert minutes <= own.coordinator._store.min_generation(slot) < minutes + 100
