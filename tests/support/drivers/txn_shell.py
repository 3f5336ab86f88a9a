"""The transaction coordinator on a real store, without a broker around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.coordinator.transactions.coordinator import TransactionCoordinator
from moldau.broker.coordinator.transactions.producer_ids import ProducerIds
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.replication import Replicated, Replication
from moldau.broker.store.store import Store
from moldau.broker.store_loss.clean_shutdown import CleanShutdown
from moldau.broker.txn.effects import AddAnswer, Answer, EndAnswer, InitAnswer, WriteMarkers
from moldau.broker.txn.events import Add, End, Event, Init
from moldau.broker.txn.record import TxnPartition, TxnState
from tests.support.stores.redis_server import RedisServer

PLACE = TxnPartition("t", b"t" * 16, 0)


class FakeMarkers:
    """Notes which markers are wanted, and writes them when it may."""

    def __init__(self) -> None:
        self.wanted: list[WriteMarkers] = []
        self.is_held = False
        self._held: list[tuple[str, Callable[[], None]]] = []

    def write(self, wanted: WriteMarkers, done: Callable[[], None]) -> None:
        self.wanted.append(wanted)
        if self.is_held:
            self._held.append((wanted.transactional_id, done))
        else:
            asyncio.get_running_loop().call_soon(done)

    def is_writing(self, producers: Collection[int]) -> bool:
        held = {name for name, _ in self._held}
        return any(
            each.producer_id in producers for each in self.wanted if each.transactional_id in held
        )

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        self._held = [one for one in self._held if not is_forgotten(one[0])]

    def release(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for _, done in held:
            done()


class FakeReplication(Replication):
    """Replicas of a store, which have what was written when the test says so."""

    def __init__(self) -> None:
        self.replicas = 0
        self.waiting: list[Replicated] = []

    @property
    def kept_all(self) -> bool:
        return True

    def when_replicated(self, done: Replicated) -> None:
        self.waiting.append(done)


class Shell:
    """A worker's transactional ids, and a way to ask them."""

    def __init__(self, coordinator: TransactionCoordinator, groups: GroupCoordinator) -> None:
        self.coordinator = coordinator
        self.groups = groups
        self.markers = FakeMarkers()
        self.replication = FakeReplication()

    async def ask(self, name: str, make: Callable[[object], Event]) -> Any:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.coordinator.submit(name, make(_Token(future)))
        return await asyncio.wait_for(future, 30)

    async def init(
        self, name: str, producer: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000
    ) -> InitAnswer:
        answer: InitAnswer = await self.ask(
            name, lambda handle: Init(handle, timeout_ms, *producer)
        )
        return answer

    async def add(self, name: str, producer: InitAnswer, *places: TxnPartition) -> AddAnswer:
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        answer: AddAnswer = await self.ask(
            name, lambda handle: Add(handle, producer_id, epoch, places or (PLACE,))
        )
        return answer

    async def end(
        self, name: str, producer: InitAnswer, *, commit: bool = True, version: int = 4
    ) -> EndAnswer:
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        answer: EndAnswer = await self.ask(
            name, lambda handle: End(handle, producer_id, epoch, commit, version)
        )
        return answer

    def state(self, name: str) -> TxnState | None:
        view = self.coordinator.transactions.describe(name)
        return None if view is None else view.state

    async def until(self, name: str, state: TxnState) -> None:
        async with asyncio.timeout(20):
            while self.state(name) is not state:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


class _Token:
    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future

    def answered(self, answer: Answer) -> None:
        self._future.set_result(answer)


@contextlib.asynccontextmanager
async def txn_shell(
    server: RedisServer, url: str | None = None, store_id: bytes = b"", *, loads: bool = True
) -> AsyncIterator[Shell]:
    """`store_id`: of the store, as its connection finds it."""
    store = Store(url or server.url, 0)
    await store.connect()
    if store_id:
        store.groups_pipe.store_id = store_id
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    config = BrokerConfig({})
    groups = GroupCoordinator(store.groups, config, spawn, worker=0, workers=1)
    ids = ProducerIds(store.topics.take_producer_ids)
    markers, replication = FakeMarkers(), FakeReplication()
    coordinator = TransactionCoordinator(
        store.transactions,
        replication,
        groups.slots,
        CleanShutdown(store.transactions, store.confirmation, groups.slots.numbers),
        markers,
        config,
        take_producer_id=ids.take,
        spawn=spawn,
    )
    own = Shell(coordinator, groups)
    own.markers, own.replication = markers, replication
    try:
        await ids.ensure()
        if loads:
            await groups.slots.load()
        yield own
    finally:
        groups.slots.give_up()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        for task in tasks:  # as at the end of a worker
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ids.close()
        store.close()
