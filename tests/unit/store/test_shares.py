"""States of share-partitions in a real store: terms fence whoever does not lead any more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
import redis

from moldau.broker.errors import (
    ErrorCode,
    SlotNotTaken,
    StoreDown,
    StoreFault,
    StoreFenced,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from moldau.broker.share import state, states
from moldau.broker.share.effects import Decided
from moldau.broker.share.limits import ShareLimits, Wish
from moldau.broker.share.partition import SharePartition
from moldau.broker.share.spans import Read, Span
from moldau.broker.store import keys
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.shares import SharePlace, ShareStore, TakenShare, Term
from tests.support.stores.proxy import StoreProxy
from tests.support.stores.redis_server import RedisServer

SLOT = 7
EPOCH = b"12"
TOPIC = bytes(range(16))
PLACE = SharePlace(TOPIC, 3)
LIMITS = ShareLimits()
_numbers = count()


class Group:
    """A share group as its coordinator stores it, under a name of its own."""

    def __init__(self, server: RedisServer, *, kind: str = "share") -> None:
        self.client = redis.from_url(server.url)
        self.name = f"group-{next(_numbers)}"
        self.key = keys.group(SLOT, self.name)
        self.client.hset(keys.slot(SLOT), "epoch", EPOCH)
        self.create("one", kind)

    def create(self, identity: str, kind: str = "share") -> None:
        self.client.hset(self.key, mapping={"identity": identity, "type": kind})

    def keys(self) -> set[bytes | str]:
        return set(self.client.keys(self.key + b":share*"))

    def terms(self) -> dict[bytes | str, bytes | str]:
        return self.client.hgetall(keys.shares(SLOT, self.name))


@asynccontextmanager
async def connected(url: str, name: str = "shares") -> AsyncIterator[ShareStore]:
    pipe = Pipe(Connector(url), name)
    store = ShareStore(pipe)
    await pipe.connect()
    try:
        yield store
    finally:
        pipe.close()
        await asyncio.sleep(0.01)


async def taken(store: ShareStore, group: Group, held: Term | None = None) -> TakenShare:
    found = await store.take(SLOT, group.name, PLACE, held)
    assert found is not None
    return found


def saving(store: ShareStore, term: Term, what: bytes) -> asyncio.Future[StoreFault | None]:
    future: asyncio.Future[StoreFault | None] = asyncio.get_running_loop().create_future()
    store.save(term, what, future.set_result)
    return future


async def save(store: ShareStore, term: Term, what: bytes) -> StoreFault | None:
    return await saving(store, term, what)


async def test_a_state_is_written_and_taken_over(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as one, connected(server.url) as two:
        first = await taken(one, group)
        assert (first.state, first.is_kept) == (b"", False)
        assert await save(one, first.term, b"written") is None
        assert await one.read(SLOT, group.name) == {PLACE: b"written"}
        second = await taken(two, group)
        assert (second.state, second.is_kept) == (b"written", False)
        assert second.term.number > first.term.number
        # The one before is fenced, whatever it tries.
        assert isinstance(await save(one, first.term, b"late"), StoreFenced)
        assert await save(two, second.term, b"newer") is None
        third = await taken(one, group, first.term)
        assert (third.state, third.is_kept) == (b"newer", False)
    assert len(group.keys()) == 2  # the terms, and one state


async def test_the_same_leader_keeps_its_memory(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        first = await taken(store, group)
        second = await taken(store, group, first.term)
        assert second.is_kept
        # The store has lost its tail: the term, the string, or both. Memory is newer, and no term
        # comes twice.
        for lost in ("term", "string", "both"):
            if lost != "string":
                group.client.hdel(keys.shares(SLOT, group.name), PLACE.field)
            if lost != "term":
                key = keys.share(SLOT, group.name, *PLACE, second.term.number)
                assert group.client.delete(key)
            again = await taken(store, group, second.term)
            assert again.is_kept
            assert again.term.number > second.term.number
            second = again


async def test_terms_are_not_below_the_clock_of_the_store(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        seconds, _ = group.client.time()
        first = await taken(store, group)
        assert first.term.number >= seconds * 1000
        group.client.delete(*group.keys())
        await asyncio.sleep(0.003)
        assert (await taken(store, group)).term.number > first.term.number


async def test_only_a_share_group_has_share_partitions(server: RedisServer) -> None:
    group = Group(server, kind="consumer")
    async with connected(server.url) as store:
        assert await store.take(SLOT, group.name, PLACE) is None
        assert await store.take(SLOT, "nobody", PLACE) is None
        assert group.keys() == set()


async def test_another_group_of_the_same_name_begins_empty(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        other = SharePlace(TOPIC, 4)
        first = await taken(store, group)
        await store.take(SLOT, group.name, other)
        assert await save(store, first.term, b"of the first") is None
        group.create("two")
        assert await store.read(SLOT, group.name) == {}
        second = await taken(store, group, first.term)
        assert (second.state, second.is_kept) == (b"", False)
        assert isinstance(await save(store, first.term, b"late"), StoreFenced)
        assert group.terms() == {
            b"identity": b"two",
            PLACE.field.encode(): b"%d" % second.term.number,
        }
        assert len(group.keys()) == 2


async def test_9_21_an_administrator_fences_the_leader(server: RedisServer) -> None:
    group = Group(server)
    other = SharePlace(TOPIC, 9)
    async with connected(server.url) as store:
        leader = await taken(store, group)
        assert await save(store, leader.term, b"old") is None
        await store.replace(SLOT, EPOCH, group.name, b"one", {PLACE: b"new", other: b"else"})
        assert isinstance(await save(store, leader.term, b"old again"), StoreFenced)
        assert await store.read(SLOT, group.name) == {PLACE: b"new", other: b"else"}
        again = await taken(store, group, leader.term)
        assert (again.state, again.is_kept) == (b"new", False)
        with pytest.raises(StoreRefused):
            await store.replace(SLOT, EPOCH, group.name, b"another", {PLACE: b"x"})
        assert await store.remove(SLOT, EPOCH, group.name, b"one", [TOPIC, bytes(16)]) == [2, 0]
        assert isinstance(await save(store, again.term, b"late"), StoreFenced)
        assert group.keys() == {keys.shares(SLOT, group.name)}


async def test_9_22_nothing_is_left_of_a_group(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        leader = await taken(store, group)
        await store.take(SLOT, group.name, SharePlace(bytes(16), 0))
        await store.remove_all(SLOT, EPOCH, group.name, b"another")
        assert len(group.keys()) == 3
        await store.remove_all(SLOT, EPOCH, group.name, b"one")
        assert group.keys() == set()
        assert isinstance(await save(store, leader.term, b"late"), StoreFenced)
        assert group.keys() == set()


async def test_administration_needs_the_slot(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        leader = await taken(store, group)
        for epoch, fault in ((b"11", StoreFenced), (None, SlotNotTaken)):
            with pytest.raises(fault):
                await store.replace(SLOT, epoch, group.name, b"one", {PLACE: b"x"})
            with pytest.raises(fault):
                await store.remove(SLOT, epoch, group.name, b"one", [TOPIC])
            with pytest.raises(fault):
                await store.remove_all(SLOT, epoch, group.name, b"one")
        assert await save(store, leader.term, b"still there") is None


async def test_a_full_store_takes_no_state_and_says_so(server: RedisServer) -> None:
    group = Group(server)
    async with connected(server.url) as store:
        leader = await taken(store, group)
        group.client.config_set("maxmemory", 1)
        try:
            assert isinstance(await save(store, leader.term, b"state"), StoreFull)
            assert await store.remove(SLOT, EPOCH, group.name, b"one", [TOPIC]) == [1]
        finally:
            group.client.config_set("maxmemory", 0)


async def test_bytes_of_a_lost_connection_arrive_too_late(server: RedisServer) -> None:
    group = Group(server)
    async with StoreProxy(server.port) as proxy, connected(proxy.url, "late") as store:
        leader = await taken(store, group)
        assert await save(store, leader.term, b"before") is None
        link = await proxy.link("late")
        link.requests.hold()
        late = saving(store, leader.term, b"late")
        await asyncio.sleep(0.05)
        link.cut_client()
        assert isinstance(await late, StoreUnavailable)
        await proxy.link("late", other_than=link)
        await store._pipe.wait_up()
        assert not store.is_current(leader.term)
        assert isinstance(await save(store, leader.term, b"refused"), StoreDown)
        again = await taken(store, group, leader.term)
        assert again.is_kept
        assert store.is_current(again.term)
        assert await save(store, again.term, b"after") is None
        waiting = link.requests.waiting
        assert waiting > 0
        link.requests.release()
        await asyncio.sleep(0.1)
        assert not link.requests.waiting
        assert await store.read(SLOT, group.name) == {PLACE: b"after"}
        assert len(group.keys()) == 2


class Leader:
    """A share-partition of a log of 400 records, kept in the store."""

    def __init__(self, store: ShareStore, group: Group) -> None:
        self.store = store
        self.group = group
        self.partition: SharePartition | None = None
        self.term: Term | None = None

    async def take(self) -> None:
        held = self.term if self.partition is not None else None
        found = await taken(self.store, self.group, held)
        self.term = found.term
        if not found.is_kept:
            self.partition = SharePartition(found.state)
        assert self.partition is not None
        if not self.partition.is_resolved:
            self.partition.resolve(0)
        await self.write()

    async def write(self) -> StoreFault | None:
        assert self.partition is not None
        assert self.term is not None
        fault = await save(self.store, self.term, self.partition.begin_save())
        if fault is None:
            self.partition.saved()
        elif isinstance(fault, StoreFenced):
            self.partition.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self.partition.save_failed(ErrorCode.KAFKA_STORAGE_ERROR, LIMITS, 0)
        return fault

    def acquire(self, most: int) -> list[tuple[int, int, int]]:
        assert self.partition is not None
        first = self.partition.wanted(LIMITS)
        if first is None:
            return []
        spans = [Span(o, o + 3, True, 0, 0, 0) for o in range(first // 4 * 4, 400, 4)]
        got = self.partition.acquire(
            Read(first, 400, [], spans), "member", Wish(most, 500), LIMITS, 0
        )
        return [] if got is None else got.ranges

    def decided(self) -> list[Decided]:
        assert self.partition is not None
        return [each for each in self.partition.take_effects() if isinstance(each, Decided)]


@pytest.mark.parametrize("seed", range(5))
async def test_9_9_what_was_confirmed_never_comes_again(server: RedisServer, seed: int) -> None:
    """Two leaders take the share-partition from each other at any time, and their connections
    break with writes on their way, some of which arrive and some of which do not."""
    rng = random.Random(seed)
    group = Group(server)
    confirmed: set[int] = set()
    async with (
        StoreProxy(server.port) as proxy,
        connected(proxy.url, "a") as a,
        connected(proxy.url, "b") as b,
    ):
        leaders = {"a": Leader(a, group), "b": Leader(b, group)}
        name = "a"
        await leaders[name].take()
        for _ in range(120):
            leader = leaders[name]
            ranges = leader.acquire(rng.choice((1, 4, 12)))
            offsets = [o for first, last, _ in ranges for o in range(first, last + 1)]
            assert not confirmed & set(offsets)
            assert leader.partition is not None
            accepted = {o for o in offsets if rng.random() < 0.8}
            for offset in offsets:
                kind = states.ACCEPT if offset in accepted else states.RELEASE
                batch = (offset, offset, bytes((kind,)))
                assert leader.partition.acknowledge(offset, "m", [batch], LIMITS, 0) is not None
                code = leader.partition.acknowledge(offset, "member", [batch], LIMITS, 0)
                assert code is None
            link = await proxy.link(name)
            event = rng.random()
            if event < 0.15:  # the connection breaks with the write on its way
                (link.requests if rng.random() < 0.5 else link.replies).hold()
                write = asyncio.ensure_future(leader.write())
                await asyncio.sleep(0.005)
                link.cut_client()
                assert isinstance(await write, StoreUnavailable)
                await proxy.link(name, other_than=link)
                await leader.store._pipe.wait_up()
                await leader.take()
                link.requests.release()
            elif event < 0.3:  # the other one takes it, and this one does not notice
                name = "b" if name == "a" else "a"
                leaders[name].partition = None
                await leaders[name].take()
                assert isinstance(await leader.write(), StoreFenced)
                assert {each.code for each in leader.decided()} <= {
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                }
                leader.partition = None
                continue
            else:
                assert await leader.write() is None
            confirmed |= {
                each.call
                for each in leader.decided()
                if each.code is ErrorCode.NONE and each.call in accepted
            }
        stored = (await leaders[name].store.read(SLOT, group.name))[PLACE]
    window = state.decode(stored)
    assert window is not None
    assert confirmed
    for offset in confirmed:
        at = window.position(offset)
        assert offset < window.start or (at is not None and window.of(at, at + 1)[0] == 0x40)
    assert len(group.keys()) == 2
