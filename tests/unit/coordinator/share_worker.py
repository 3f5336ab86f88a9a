"""A worker that leads share-partitions, on a store, without a log; and groups for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import redis

from moldau.broker.coordinator.shares.partitions import Led, ShareKey, SharePartitions
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import slot_of
from moldau.broker.share.effects import Effect
from moldau.broker.share.limits import ShareLimits, Wish
from moldau.broker.share.spans import Read, Span
from moldau.broker.store import keys
from moldau.broker.store.connector import Connector
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.shares import SharePlace, ShareStore
from tests.support.stores.redis_server import RedisServer

ACCEPT, RELEASE, REJECT = b"\1", b"\2", b"\3"
EPOCH = b"5"
PLACE = SharePlace(bytes(range(16)), 0)
END = 100
_numbers = count()


class Worker:
    def __init__(self, store: ShareStore, client: redis.Redis) -> None:
        self.store = store
        self.client = client
        self.limits = ShareLimits()
        self.start = 0
        self.started = 0
        self.effects: list[Effect] = []
        self.woken = 0
        self.shares = SharePartitions(store, lambda group_id: self.limits, self._start_of)
        self.shares.on_effect = lambda key, effect: self.effects.append(effect)
        self.shares.on_woken = self._wake

    async def _start_of(self, key: ShareKey) -> int:
        self.started += 1
        return self.start

    def _wake(self, led: Led) -> None:
        self.woken += 1

    def group(self, identity: bytes = b"one") -> ShareKey:
        """A new share group, as its coordinator stores it."""
        name = f"shares-{next(_numbers)}"
        slot = slot_of(name)
        self.client.hset(keys.slot(slot), "epoch", EPOCH)
        self.client.hset(keys.group(slot, name), mapping={"identity": identity, "type": "share"})
        return ShareKey(name, PLACE)

    def acquire(self, led: Led, member: str = "m", most: int = 10) -> list[tuple[int, int, int]]:
        first = led.machine.wanted(self.limits)
        if first is None:
            return []
        read = Read(first, END, [], [Span(o, o, True, 0, 0, 0) for o in range(first, END)])
        got = self.shares.acquire(led, read, member, Wish(most, 500))
        return [] if got is None else got.ranges

    def acknowledging(
        self, led: Led, first: int, last: int, kind: bytes = ACCEPT, member: str = "m"
    ) -> asyncio.Future[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.shares.acknowledge(led, member, [(first, last, kind)], future.set_result)
        return future

    async def acknowledge(
        self, led: Led, first: int, last: int, kind: bytes = ACCEPT, member: str = "m"
    ) -> ErrorCode:
        return await asyncio.wait_for(self.acknowledging(led, first, last, kind, member), 60)

    async def stored(self, key: ShareKey) -> bytes:
        return (await self.store.read(slot_of(key.group_id), key.group_id))[key.place]


@asynccontextmanager
async def working(server: RedisServer, url: str = "", name: str = "w") -> AsyncIterator[Worker]:
    pipe = Pipe(Connector(url or server.url), name)
    store = ShareStore(pipe)
    with redis.from_url(server.url) as client:
        worker = Worker(store, client)
        await pipe.connect()
        try:
            yield worker
        finally:
            worker.shares.close()
            pipe.close()
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
