"""The logs of one worker: opened when first used, notified of what other workers do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from moldau.broker.errors import ErrorCode, StoreFault, StoreFull
from moldau.broker.group.offsets import CommittedOffset, TopicPartition
from moldau.broker.log.keeping.archived import Archived
from moldau.broker.log.keeping.retention import Retention
from moldau.broker.log.log import Log
from moldau.broker.log.native.group_assignments import GroupAssignments
from moldau.broker.log.native.log import NativeLog
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading.store_read import ReadAhead
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.state.view import TailCache
from moldau.broker.log.writing.verification import Verified
from moldau.broker.metrics.log_counters import LogCounters
from moldau.broker.placement import leader_of
from moldau.broker.store import keys
from moldau.broker.store.store import Store
from moldau.broker.store.streams import wake_command
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.checked_logs import CheckedLogs
from moldau.broker.store_loss.leader_epochs import LeaderEpochs
from moldau.broker.store_loss.log_integrity import LogIntegrity
from moldau.broker.topics.topics import Topic, Topics
from moldau.broker.txn.record import TxnPartition

logger = logging.getLogger("moldau.log")

TAIL_LINGER_S = 60.0  # a log stays tailed after its last waiting reader
FULL_LOG_EVERY_S = 5.0
READ_AHEAD_SHARE = 4  # reading ahead may take this part of the tail cache's bytes, beside it


class Enlistment(Protocol):
    """Asks the coordinators of transactions, of this worker and of others."""

    def enlist(
        self, transactional_id: str, producer_id: int, producer_epoch: int, place: TxnPartition,
        *, verify_only: bool, done: Verified,
    ) -> None:  # fmt: skip
        """Call `done` with the number of the transaction, once the place is durably part of it."""


class HangingTransactions(Protocol):
    """Ends transactions that no coordinator is going to end."""

    def look(self, log: PartitionLog, place: TxnPartition) -> None: ...


class Logs:
    """Finds a partition's log, and runs the background work of logs."""

    def __init__(
        self, store: Store, topics: Topics, integrity: LogIntegrity, *, worker: int, workers: int,
        cache_bytes: int, snapshot_entries: int,
    ) -> None:  # fmt: skip
        self._store = store
        self.streams = store.streams
        self.integrity = integrity
        self.replication = store.replication
        self.native = store.native
        self.snapshot_entries = snapshot_entries
        self.counters = LogCounters()
        self._topics = topics
        self._worker = worker
        self._workers = workers
        self.cache = TailCache(cache_bytes)
        self.read_ahead = ReadAhead(cache_bytes // READ_AHEAD_SHARE)
        self.unpacking = Unpacking()
        archived = Archived(store.groups, topics.id_of)
        self.retention = Retention(store.streams, store.topics, archived)
        self.leader_epochs = LeaderEpochs(store.epochs, store.topics)
        integrity.on_epoch = self.leader_epochs.raised
        self.checked = CheckedLogs(topics, self, integrity, self.leader_epochs)
        self.group_assignments = GroupAssignments(topics, store.topics, store.native)
        self.group_assignments.on_changed = self._group_changed
        self._logs: dict[tuple[bytes, int], Log] = {}  # by topic id and partition
        self._by_key: dict[bytes, list[Log]] = {}  # several native topics may share a stream
        self._partition_logs: dict[tuple[bytes, int], PartitionLog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_full_line = 0.0
        self.watcher: Watcher | None = None
        self.enlistment: Enlistment | None = None  # asks the coordinators of transactions
        self.hanging_transactions: HangingTransactions | None = None
        topics.on_removed += (self._topic_removed, self.leader_epochs.topic_removed)
        store.reads.on_up = self.look_everywhere  # a read that was under way has failed

    # --- finding ---

    def log_for(self, topic: Topic, partition: int) -> Log:
        """The log of a partition that exists."""
        found = self._logs.get((topic.topic_id, partition))
        if found is None and topic.native:
            found = self._open_native(topic, partition)
        elif found is None:
            found = self.partition_log(topic, partition)
        return found

    def partition_log(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition of an ordinary topic."""
        place = (topic.topic_id, partition)
        found = self._partition_logs.get(place)
        if found is None:
            key = topic.key(partition)
            leader = leader_of(topic.name, partition, self._workers)
            wake = None if leader == self._worker else wake_command(keys.wake(leader), key)
            found = PartitionLog(self, topic.name, partition, key, self.cache.tail(), wake)
            found.reader.unpacked_limit = lambda: topic.config.unpacked_max_bytes
            self._partition_logs[place] = found
            self._add(place, found)
        return found

    def _open_native(self, topic: Topic, partition: int) -> NativeLog:
        key, base = topic.key(partition), topic.base(partition)
        opened = NativeLog(self, topic.name, partition, key, base, lambda: topic.config)
        self._add((topic.topic_id, partition), opened)
        return opened

    def _add(self, place: tuple[bytes, int], log: Log) -> None:
        log.counters = self.counters.topic(log.topic)
        self._logs[place] = log
        self._by_key.setdefault(log.key, []).append(log)

    def leads(self, topic: str, partition: int) -> bool:
        return leader_of(topic, partition, self._workers) == self._worker

    def all(self) -> list[Log]:
        return list(self._logs.values())

    def _topic_removed(self, topic: Topic) -> None:
        self.counters.topics.pop(topic.name, None)
        for partition in range(topic.partitions):
            place = (topic.topic_id, partition)
            log = self._logs.pop(place, None)
            self._partition_logs.pop(place, None)
            if log is None:
                continue
            sharing = self._by_key[log.key]
            sharing.remove(log)
            log.gone()
            if not sharing:
                del self._by_key[log.key]
                if self.watcher is not None:
                    self.watcher.untail(log.key)

    # --- groups ---

    def offsets_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Notify logs of a commit that is about to be written, if they show groups in Redis."""
        native = [
            (topic, place.partition, committed.offset)
            for place, committed in offsets.items()
            if (topic := self._topics.get(place.topic)) is not None and topic.native
        ]
        if native:
            # In the same write as the commit, behind it.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._acknowledge, group_id, native)

    def _acknowledge(self, group_id: str, offsets: list[tuple[Topic, int, int]]) -> None:
        for topic, partition, offset in offsets:
            self.log_for(topic, partition).offset_committed(group_id, offset)

    async def group_position(self, group_id: str, name: str, partition: int) -> int | None:
        """Where a group stands that has committed nothing, if the store knows."""
        topic = self._topics.get(name)
        if topic is None or not topic.native or not 0 <= partition < topic.partitions:
            return None
        return await self.log_for(topic, partition).group_position(group_id)

    def _group_changed(self, group_id: str) -> None:
        for log in self.all():
            log.group_changed(group_id)

    # --- transactions ---

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int,
        topic: str, partition: int, *, verify_only: bool, done: Verified,
    ) -> None:  # fmt: skip
        """Ask a coordinator for the transaction that a batch of a log is part of."""
        found = self._topics.get(topic)
        if found is None or self.enlistment is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
            return
        place = TxnPartition(topic, found.topic_id, partition)
        self.enlistment.enlist(
            transactional_id, producer_id, producer_epoch, place,
            verify_only=verify_only, done=done,
        )  # fmt: skip

    def transactions_left_open(self, topic: str, partition: int) -> None:
        found = self._topics.get(topic)
        if found is not None and self.hanging_transactions is not None:
            log = self.partition_log(found, partition)
            self.hanging_transactions.look(log, TxnPartition(topic, found.topic_id, partition))

    # --- notices of what others append ---

    def watch(self, log: Log) -> None:
        """Be notified of what others append to it."""
        watcher = self.watcher
        if watcher is not None and not log.is_watched and log.tail_with(watcher):
            self._untail_later(log.key)

    def _untail_later(self, key: bytes) -> None:
        asyncio.get_running_loop().call_later(TAIL_LINGER_S, self._untail, key)

    def _untail(self, key: bytes) -> None:
        sharing = self._by_key.get(key, ())
        if any(log.waiters for log in sharing):
            self._untail_later(key)
        elif self.watcher is not None:
            self.watcher.untail(key)
            for log in sharing:
                log.untailed()

    def woken(self, key: bytes) -> None:
        for log in self._by_key.get(key, ()):
            log.look()

    def received(self, key: bytes, entries: list[Any]) -> None:
        for log in self._by_key.get(key, ()):
            log.received(entries)

    def look_everywhere(self) -> None:
        """Notices may have been missed: every log looks for itself.

        Also logs that no client waits on: the next reader takes their end for the log's.
        """
        for log in self.all():
            log.look()

    def store_changed(self) -> None:
        """The store may have lost entries: no log counts on what it knew (see log_integrity.py)."""
        known = [
            (log.key, log.writer.known_end)
            for log in self._partition_logs.values()
            if log.writer.known_end.end
        ]
        self.integrity.begin(known)
        self.replication.store_changed()
        for log in self.all():
            log.store_changed()

    # --- what logs need of their worker (LogHost, NativeHost) ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("background work failed", exc_info=fault)

    def producers_kept_ms(self) -> int:
        return self._topics.broker.get_int("producer.id.expiration.ms")

    def mirror_source(self, topic: str) -> str:
        found = self._topics.get(topic)
        return "" if found is None else found.config.mirror_source

    def store_full(self, fault: StoreFull) -> None:
        """Log that the store is full, at most every few seconds."""
        self.counters.refused_full += 1
        now = time.monotonic()
        if now - self._last_full_line >= FULL_LOG_EVERY_S:
            self._last_full_line = now
            self.spawn(self._report_full(fault))

    async def _report_full(self, fault: StoreFull) -> None:
        try:
            why = await self._store.why_full()
        except StoreFault as unknown:
            why = f"why is not known ({unknown})"
        logger.critical(
            "THE STORE IS FULL, producers are refused (%d so far): %s: %s",
            *(self.counters.refused_full, why, fault),
        )

    async def close(self, seconds: float) -> None:
        """Let appends finish, save snapshots; what still waits then is cancelled."""
        deadline = time.monotonic() + seconds
        busy = [asyncio.ensure_future(log.current()) for log in self.all() if log.is_busy]
        if busy:
            await asyncio.wait(busy, timeout=seconds)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.1)):
                for log in self._partition_logs.values():
                    if log.is_loaded and log.writer.entries_unsaved:
                        await log.save_snapshot()
                    if not self.integrity.is_kept:
                        await log.release()
        except (TimeoutError, StoreFault) as fault:
            logger.warning("not every snapshot was saved: %s", fault)
        self.checked.close()
        self.integrity.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
