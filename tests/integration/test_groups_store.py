"""The shell of groups on a real store: what it keeps, what it lets go, what it never claims."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker.coordinator.group_coordinator import GroupCoordinator
from broker.errors import StoreRefused, StoreUnavailable
from broker.group.effects import Answer, JoinAnswer, SyncAnswer
from broker.group.events import Event, Join, Leave, LeavingMember, Sync
from broker.group.offsets import TopicPartition, new_commit
from broker.placement import slot_of
from broker.settings.kafka import BrokerConfig
from broker.store import keys
from broker.store.groups import _REMOVE, GONE_BYTES, GONE_SECONDS
from broker.store.store import Store
from tests.support.redis_server import RedisServer
from tests.support.store_proxy import Link, StoreProxy

NOT_AVAILABLE = 15
REFUSED = b":0\r\n"
QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.retention.minutes": "60"}


class Shell:
    """A worker's groups, and a way to ask them."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.coordinator = coordinator

    async def ask(self, group: str, make: Any) -> Any:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        event: Event = make(_Token(future))
        self.coordinator.submit(group, event)
        return await asyncio.wait_for(future, 30)

    async def join(self, group: str, member_id: str = "") -> JoinAnswer:
        answer: JoinAnswer = await self.ask(
            group,
            lambda token: Join(
                token,
                member_id,
                None,
                "client",
                "host",
                10_000,
                10_000,
                "consumer",
                (("range", b""),),
                False,
                False,
                None,
            ),
        )
        return answer

    async def sync(self, group: str, joined: JoinAnswer) -> SyncAnswer:
        answer: SyncAnswer = await self.ask(
            group,
            lambda token: Sync(token, joined.member_id, None, joined.generation_id, None, None, ()),
        )
        return answer

    async def leave(self, group: str, joined: JoinAnswer) -> None:
        members = (LeavingMember(joined.member_id),)
        await self.ask(group, lambda token: Leave(token, members))


class _Token:
    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future

    def answered(self, answer: Answer) -> None:
        self._future.set_result(answer)


@contextlib.asynccontextmanager
async def shell(server: RedisServer, url: str | None = None) -> AsyncIterator[Shell]:
    store = Store(url or server.url, 0)
    await store.connect()
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    coordinator = GroupCoordinator(store.groups, BrokerConfig(QUICK), spawn, worker=0, workers=1)
    try:
        await coordinator.load()
        yield Shell(coordinator)
    finally:
        coordinator.give_up()
        await asyncio.gather(*tasks)
        store.close()


async def test_2_25_an_empty_group_without_offsets_is_forgotten(server: RedisServer) -> None:
    async with shell(server) as own:
        groups = own.coordinator.groups
        for name in ("left", "kept", "there"):
            joined = await own.join(name)
            assert (await own.sync(name, joined)).error == 0
            if name != "there":
                await own.leave(name, joined)
        place = TopicPartition("orders", 0)
        await own.coordinator.commit("kept", {place: new_commit(7, own.coordinator.now_ms())})

        await own.coordinator.expire()

        assert set(groups.by_id) == {"kept", "there"}
        # Whatever takes the last offset: then it is forgotten too.
        await own.coordinator.topic_deleted("orders")
        await own.coordinator.expire()
        assert set(groups.by_id) == {"there"}
    async with shell(server) as again:
        assert set(again.coordinator.groups.by_id) == {"there"}


async def test_2_25_groups_that_go_while_others_are_seen_to(server: RedisServer) -> None:
    async with shell(server) as own:
        names = [f"simple-{number}" for number in range(20)]
        long_ago = own.coordinator.now_ms() - 2 * 3_600_000
        for name in names:
            await own.coordinator.commit(name, {TopicPartition("t", 0): new_commit(1, long_ago)})

        await asyncio.gather(
            own.coordinator.expire(), *(own.coordinator.delete(name) for name in names[10:])
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
            key = keys.group(name).decode()
            revision = int(client.hget(key, "revision") or 0)
            client.hset(key, "revision", str(revision + 1))
        identity = own.coordinator.groups.by_id[name].identity
        with pytest.raises(StoreRefused):
            await own.coordinator._store.save(slot_of(name), name, identity, revision + 1, b"older")

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
        former = own.coordinator._store._control.client_id
        async with shell(server) as again:  # which takes over, and closes our connection
            assert name not in again.coordinator.groups.by_id
        await _back(own, former)

        joined = await own.join(name)
        assert (await own.sync(name, joined)).error == 0
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
        await store.save(slot, name, "cgp_first", 4, b"first")
        await store.remove(slot, name, "cgp_first")
        await store.save(slot, name, "cgp_second", 1, b"second")

        await store._all(
            ("EVAL", _REMOVE, 1, keys.group(name), "cgp_first", GONE_BYTES, GONE_SECONDS)
        )

        assert _stored(server, name) == (b"cgp_second", b"second")
        with pytest.raises(StoreRefused):
            await store.save(slot, name, "cgp_first", 5, b"first")
        await store.remove(slot, name, "cgp_second")
        for identity in ("cgp_first", "cgp_second"):
            with pytest.raises(StoreRefused):
                await store.save(slot, name, identity, 9, b"late")
        assert _stored(server, name) == (None, None)
        with redis.Redis.from_url(server.url) as client:  # what is remembered is not for ever
            assert 0 < int(client.ttl(keys.group(name).decode())) <= GONE_SECONDS
        assert await store.load(slot) == []


async def test_2_23_offsets_of_a_deleted_group_are_not_brought_back_by_a_late_commit(
    server: RedisServer,
) -> None:
    """A simple consumer's, whose group has no record: the connection is lost with a commit under
    way, and what it held is sent on after the deletion."""

    name, place = "simple and late", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            await own.coordinator.commit(name, {place: new_commit(5, own.coordinator.now_ms())})
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
            await own.coordinator.commit(name, {place: new_commit(5, own.coordinator.now_ms())})
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
            await own.coordinator.commit(name, {place: new_commit(2, own.coordinator.now_ms())})
            await _deliver(link)
        async with shell(server) as again:
            assert _offset(again, name, place) == 2


async def test_2_23_a_late_deletion_spares_offsets_committed_after_it(server: RedisServer) -> None:
    name, place = "spared", TopicPartition("t", 0)
    async with StoreProxy(server.port) as proxy:
        async with shell(server, proxy.url) as own:
            await own.coordinator.commit(name, {place: new_commit(5, own.coordinator.now_ms())})
            while _stored(server, name)[0] is None:  # noqa: ASYNC110 (its record comes later)
                await asyncio.sleep(0.002)
            link = await proxy.link("moldau-0-groups")
            link.requests.hold()
            deleting = asyncio.ensure_future(own.coordinator.delete(name))
            await _cut_when_held(link)
            assert await deleting == NOT_AVAILABLE
            await _back(own)
            await own.coordinator.commit(name, {place: new_commit(6, own.coordinator.now_ms())})
            await _deliver(link)
        async with shell(server) as again:
            assert _offset(again, name, place) == 6


async def test_nobody_else_is_closed_by_a_worker_that_starts(server: RedisServer) -> None:
    """Other workers, other brokers on other databases, and names that only look alike stay."""

    names = {
        "moldau-1-groups": 0,
        "moldau-0-bulk": 0,
        "moldau-0-groups-of-mine": 0,
        "moldau-0-groups": 1,
    }
    gone = {"moldau-0-groups": 0, "moldau-7-groups": 0}
    with contextlib.ExitStack() as stack:

        def connection(name: str, database: int) -> redis.Redis:
            url = f"{server.url}/{database}?client_name={name}"
            client = redis.Redis.from_url(
                url, single_connection_client=True, retry=Retry(NoBackoff(), 0)
            )
            stack.callback(client.close)
            client.ping()
            return client

        staying = [connection(name, database) for name, database in names.items()]
        leaving = [connection(name, database) for name, database in gone.items()]
        store = Store(server.url, 0)
        await store.connect()
        await store.groups.take_over(0, 2)
        store.close()
        for client in staying:
            assert client.ping()
        for client in leaving:
            with pytest.raises(redis.ConnectionError):
                client.ping()


async def _hold_a_commit(proxy: StoreProxy, own: Shell, name: str, place: TopicPartition) -> Link:
    """A commit of offset 9 that the worker has given up, and that still is on its way."""
    link = await proxy.link("moldau-0-groups")
    link.requests.hold()
    committing = asyncio.ensure_future(
        own.coordinator.commit(name, {place: new_commit(9, own.coordinator.now_ms())})
    )
    await _cut_when_held(link)
    with pytest.raises(StoreUnavailable):
        await committing
    return link


async def _cut_when_held(link: Link) -> None:
    while not link.requests.waiting:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.002)
    link.cut_client()


async def _back(own: Shell, former: int = 0) -> None:
    """Until it writes again, through another connection than that one."""
    store = own.coordinator._store
    async with asyncio.timeout(30):
        await store._control.wait_up()
        while not store._stale.are_closed or store._control.client_id == former:  # noqa: ASYNC110
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
        identity, record = client.hmget(keys.group(name).decode(), "identity", "record")
        return identity, record
