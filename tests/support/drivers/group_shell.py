"""The coordinator of groups on a real store, without a broker around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import redis

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.errors import StoreFault
from moldau.broker.group.effects import Answer, HeartbeatAnswer, JoinAnswer, SyncAnswer
from moldau.broker.group.events import ConsumerHeartbeat, Event, Join, Leave, LeavingMember, Sync
from moldau.broker.group.offsets import TopicPartition, new_commit
from moldau.broker.group.topics import TopicFacts, TopicLookup
from moldau.broker.placement import slot_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store import keys
from moldau.broker.store.store import Store
from tests.support.stores.redis_server import RedisServer

P, Q = 9_000_000_007, 8  # producers
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
            lambda handle: Join(
                handle,
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
            lambda handle: Sync(
                handle, joined.member_id, None, joined.generation_id, None, None, ()
            ),
        )
        return answer

    async def heartbeat(
        self, group: str, member_id: str, epoch: int = 0, **options: Any
    ) -> HeartbeatAnswer:
        """Send a heartbeat of the consumer protocol; with epoch 0 it is a join."""
        if epoch == 0:
            options = {"rebalance_timeout_ms": 60_000, "owned": frozenset(), **options}
        answer: HeartbeatAnswer = await self.ask(
            group,
            lambda handle: ConsumerHeartbeat(handle, member_id, epoch, "client", "host", **options),
        )
        return answer

    async def stable(self, group: str) -> JoinAnswer:
        """A group with one member."""
        joined = await self.join(group)
        assert (await self.sync(group, joined)).error == 0
        return joined

    async def commit(self, group: str, offset: int, *places: tuple[str, int]) -> None:
        committed = new_commit(offset, self.coordinator.now_ms())
        wanted = {TopicPartition(*place): committed for place in places or (("t", 0),)}
        await self.coordinator.offsets.commit(group, wanted)

    async def txn_commit(
        self, group: str, producer_id: int, number: int, offset: int, *places: tuple[str, int]
    ) -> None:
        """A TxnOffsetCommit that was let into transaction `number`."""
        transactional = self.coordinator.transactional
        committed = new_commit(offset, self.coordinator.now_ms())
        wanted = {TopicPartition(*place): committed for place in places or (("t", 0),)}
        with transactional.in_progress(group, producer_id) as commit:
            await transactional.commit(commit, number, wanted)

    async def end(self, group: str, producer_id: int, number: int, *, commit: bool) -> None:
        """A marker for the slot of a group."""
        await self.coordinator.transactional.end(slot_of(group), producer_id, 0, number, commit)

    def pending(self, group: str) -> dict[tuple[int, str, int], int | None]:
        """Offsets of open transactions by producer and partition; None: overtaken."""
        offsets = self.coordinator.groups.offsets.get(group)
        return {
            (producer_id, *place): None if one.committed is None else one.committed.offset
            for producer_id, place, one in (offsets.pending if offsets is not None else ())
        }

    async def quiet(self) -> None:
        """Wait until every group is stored."""
        async with asyncio.timeout(30):
            while any(  # noqa: ASYNC110
                group.is_writing for group in self.coordinator.groups.by_id.values()
            ):
                await asyncio.sleep(0.002)

    def offset(self, group: str, topic: str = "t", partition: int = 0) -> int | None:
        offsets = self.coordinator.groups.offsets.get(group)
        committed = None if offsets is None else offsets.get(topic, partition)
        return None if committed is None else committed.offset

    async def leave(self, group: str, joined: JoinAnswer) -> None:
        members = (LeavingMember(joined.member_id),)
        await self.ask(group, lambda handle: Leave(handle, members))


def _seen(partitions: Mapping[str, int]) -> TopicLookup:
    facts = [
        TopicFacts(name, name.encode().ljust(16, b"-"), count) for name, count in partitions.items()
    ]
    by_name, by_id = {one.name: one for one in facts}, {one.topic_id: one for one in facts}
    return TopicLookup(by_name.get, by_id.get, lambda: list(by_name))


class _Token:
    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future

    def answered(self, answer: Answer) -> None:
        self._future.set_result(answer)

    def failed(self) -> None:
        self._future.cancel()


@contextlib.asynccontextmanager
async def shell(
    server: RedisServer,
    url: str | None = None,
    store_id: bytes = b"",
    topics: Mapping[str, int] | None = None,
) -> AsyncIterator[Shell]:
    """`store_id`: of the store, as its connection finds it. `topics`: with how many
    partitions."""
    store = Store(url or server.url, 0)
    await store.connect()
    if store_id:
        store.groups_pipe.store_id = store_id
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    coordinator = GroupCoordinator(
        store.groups,
        BrokerConfig(QUICK),
        spawn,
        worker=0,
        workers=1,
        topics=_seen(topics or {}),
    )
    try:
        await coordinator.slots.load()
        yield Shell(coordinator)
    finally:
        coordinator.slots.give_up()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        for task in tasks:  # as at the end of a worker
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        store.close()


def fields(client: redis.Redis, group: str) -> set[str]:
    """What the store has of a group's offsets."""
    found: list[Any] = client.hkeys(keys.offsets(slot_of(group), group).decode())
    return {name.decode() for name in found}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.002)


async def stored(begin: Callable[[Callable[[StoreFault | None], None]], None]) -> None:
    """Begin a write with a callback, and wait for its outcome. Raises StoreFault."""
    outcome: asyncio.Future[StoreFault | None] = asyncio.get_running_loop().create_future()
    begin(outcome.set_result)
    fault = await asyncio.wait_for(outcome, 30)
    if fault is not None:
        raise fault
