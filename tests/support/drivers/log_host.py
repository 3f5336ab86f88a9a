"""Partition logs without a worker: what a `PartitionLog` needs of one, on connections of its own.

async with Host(url) as host:
    log = host.log("topic", 0)
    offset = await append(log, batch)
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self

from moldau.broker.errors import ErrorCode, StoreFull
from moldau.broker.log.keeping.archived import Archived
from moldau.broker.log.keeping.retention import Retention
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading.store_read import ReadAhead
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.state.view import TailCache
from moldau.broker.log.writing.append import Append, Participation
from moldau.broker.log.writing.verification import Verified
from moldau.broker.metrics.log_counters import LogCounters
from moldau.broker.store import keys
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.connector import Connector
from moldau.broker.store.groups import GroupStore
from moldau.broker.store.log_integrity import EpochStore, LogIntegrityStore
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.replication import Replication
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store.streams import Entry, Streams
from moldau.broker.store.topics import TopicStore
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.leader_epochs import LeaderEpochs
from moldau.broker.store_loss.log_integrity import LogIntegrity
from moldau.broker.wire.batch import read_header

CACHE_BYTES = 1 << 20
READ_AHEAD_BYTES = 1 << 20


class Host:
    """A `LogHost` with pipes called `<name>-bulk`, `<name>-reads` and so on."""

    def __init__(
        self,
        url: str,
        name: str = "test",
        *,
        stall_after: float = 20.0,
        snapshot_entries: int = 1000,
        cache_bytes: int = CACHE_BYTES,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        connector = Connector(url)
        server = StoreIdentity()
        self.bulk, self.replicated, self.reads, self.control = self._pipes = tuple(
            Pipe(
                connector,
                f"{name}-{what}",
                stall_after=max(stall_after, 3.0) if what == "replicated" else stall_after,
                identity=server,
            )
            for what in ("bulk", "replicated", "reads", "control")
        )
        self.streams = Streams(self.bulk, self.reads, self.control)
        self.integrity = LogIntegrity(
            server, LogIntegrityStore(self.control, worker), Confirmation(server, self.replicated),
            worker=worker, workers=workers,
        )  # fmt: skip
        self.replication = Replication(server, self.replicated)
        self.counters = LogCounters()
        self._server = server
        self._logs: list[PartitionLog] = []
        archived = Archived(GroupStore(self.control), lambda topic: None)
        self.retention = Retention(self.streams, TopicStore(self.control), archived)
        self.leader_epochs = LeaderEpochs(EpochStore(self.control), TopicStore(self.control))
        self.watcher: Watcher | None = None
        self.snapshot_entries = snapshot_entries
        self.cache = TailCache(cache_bytes)
        self.read_ahead = ReadAhead(READ_AHEAD_BYTES)
        self.unpacking = Unpacking()
        self.full: list[StoreFull] = []
        self.kept_ms = 86_400_000
        self.mirrored: dict[str, str] = {}  # topics and their marks
        self.left_open: list[tuple[str, int]] = []
        self.asked: list[tuple[int, int, bool]] = []  # producer id, epoch, verify only
        self.coordinator: Callable[[int, int, Verified], None] = _no_coordinator
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        waiting = [pipe.connect() for pipe in self._pipes if not pipe.is_up]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome  # once none of them is still connecting
        self.integrity.begin()
        self._server.on_changed = self._store_changed
        return self

    def _store_changed(self) -> None:
        self.replication.store_changed()
        self.integrity.begin([(log.key, log.writer.known_end) for log in self._logs])
        for log in self._logs:
            log.store_changed()

    async def __aexit__(self, *_: object) -> None:
        self.integrity.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pipe in self._pipes:
            pipe.close()
        await asyncio.sleep(0.01)  # let the transports end

    def mirror_source(self, topic: str) -> str:
        return self.mirrored.get(topic, "")

    async def create(self, topic: str, partition: int = 0) -> PartitionLog:
        """A new, empty log."""
        log = self.log(topic, partition)
        await self.streams.create(log.key, *self.integrity.of_new_log(topic, partition))
        return log

    def log(self, topic: str, partition: int = 0, wake: bytes | None = None) -> PartitionLog:
        key = keys.stream(topic, 0, partition)
        log = PartitionLog(self, topic, partition, key, self.cache.tail(), wake)
        self._logs.append(log)
        return log

    # --- LogHost ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        verify_only: bool,
        done: Verified,
    ) -> None:
        self.asked.append((producer_id, producer_epoch, verify_only))
        self.coordinator(producer_id, producer_epoch, done)

    def producers_kept_ms(self) -> int:
        return self.kept_ms

    def transactions_left_open(self, topic: str, partition: int) -> None:
        self.left_open.append((topic, partition))

    def store_full(self, fault: StoreFull) -> None:
        self.full.append(fault)


def _no_coordinator(producer_id: int, producer_epoch: int, done: Verified) -> None:
    done(ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0)


class WaitedAppend(Append):
    """An append whose outcome can be awaited: its base offset, or what went wrong."""

    __slots__ = ("answers", "outcome", "participation")

    def __init__(
        self,
        batch: bytes | bytearray,
        replicas: int = 0,
        timeout_ms: int = 0,
        participation: Participation | None = None,
    ) -> None:
        own = bytearray(batch)  # the log writes its place into it
        super().__init__(own, read_header(own), replicas, timeout_ms)
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.answers = 0
        self.participation = participation

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self.answers += 1
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(base_offset)
        else:
            self.outcome.set_exception(error)


def begin(log: PartitionLog, batch: bytes | bytearray) -> WaitedAppend:
    waited = WaitedAppend(batch)
    log.append(waited)
    return waited


async def append(log: PartitionLog, batch: bytes | bytearray) -> int:
    """Append and wait; the base offset."""
    return await begin(log, batch).outcome


async def stored(host: Host, log: PartitionLog) -> list[Entry]:
    """Every entry of the log, straight from the store."""
    entries: list[Entry] = []
    while more := await host.streams.first_entries(
        log.key, entries[-1].base + 1 if entries else 0, 512
    ):
        entries += more
    return entries


async def until(condition: Callable[[], bool], patience_s: float = 30) -> None:
    """Give the loop turns until it holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.001)
