"""The log of an ordinary partition: Kafka's record batches in a Redis stream.

A reader (reading/reader.py), a writer (writing/writer.py) and the writer's shell, as the `Log` that
handlers use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from moldau.broker.errors import ErrorCode, KafkaError, StoreDown, StoreFault, StoreFull
from moldau.broker.log.callbacks import Completion
from moldau.broker.log.keeping.retention import Retention
from moldau.broker.log.log import (
    AbortedFound,
    Bounds,
    FetchClient,
    FetchReader,
    Log,
    OffsetAndTimestamp,
)
from moldau.broker.log.reading import timestamps
from moldau.broker.log.reading.committed import CommittedReader
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.store_read import ReadAhead
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.state.loading import Loader
from moldau.broker.log.state.log_state import LogState, Producer
from moldau.broker.log.state.view import Tail
from moldau.broker.log.writing.append import ADMINISTRATORS, Append, Marker, MarkerAppend
from moldau.broker.log.writing.append_queue import InFlightEntry
from moldau.broker.log.writing.phases import NOT_LOADED
from moldau.broker.log.writing.verification import Verifies
from moldau.broker.log.writing.writer import PartitionWriter
from moldau.broker.metrics.log_counters import LogCounters
from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED
from moldau.broker.store.replication import Replication
from moldau.broker.store.streams import Streams, append_prefix
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.store_loss.leader_epochs import LeaderEpochs
from moldau.broker.store_loss.log_integrity import LogIntegrity, Reservation

logger = logging.getLogger("moldau.log")

INDEX_EVERY = 1 << 20
SNAPSHOT_BYTES = 64 << 20


class LogHost(Verifies, Protocol):
    """What a log needs of the worker it lives in."""

    streams: Streams
    integrity: LogIntegrity
    replication: Replication
    snapshot_entries: int
    counters: LogCounters
    retention: Retention
    leader_epochs: LeaderEpochs
    watcher: Watcher | None
    read_ahead: ReadAhead
    unpacking: Unpacking

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def producers_kept_ms(self) -> int: ...
    def mirror_source(self, topic: str) -> str:
        """The mark of a topic that is a mirror: what it mirrors. Empty: it is none."""

    def store_full(self, fault: StoreFull) -> None: ...
    def transactions_left_open(self, topic: str, partition: int) -> None:
        """A log with open transactions was loaded that once began a new leader epoch."""


class PartitionLog(Log):
    """`wake`: the command that notifies the leader of an append; None when this worker leads."""

    def __init__(
        self, host: LogHost, topic: str, partition: int, key: bytes, tail: Tail, wake: bytes | None
    ) -> None:
        super().__init__(topic, partition, key)
        self._host = host
        self._is_led = wake is None
        self.reader = LogReader(
            host.streams, topic, partition, key, tail, host.read_ahead, host.unpacking
        )
        self.reader.on_epoch = self._epoch_found
        self._committed: CommittedReader | None = None  # made for the first such consumer
        self._streams = host.streams
        self._wake_leader = wake
        self._prefix = append_prefix(key)
        self._snapshot_size = 0
        self._reservation = Reservation(host.integrity, key)
        self._reserving: asyncio.Task[bool] | None = None
        self.writer = PartitionWriter(
            self,
            self.reader,
            self.waiters,
            host.replication,
            self._reservation,
            host,
            time.monotonic,
            host.counters.topic(topic).refused,
        )
        loader = Loader(host, self.reader, self.writer, self._state_read)
        self.load, self.find, self.recover = loader.load, loader.find, loader.recover
        self.end_turn = partial(asyncio.get_running_loop().call_soon, self.writer.turn_ended)

    @property
    def epochs(self) -> Epochs:
        return self.reader.epochs

    @property
    def leader_epoch(self) -> int:
        return self.reader.epochs.current

    def _epoch_found(self) -> None:
        """An epoch was found in the store. Whoever began it may have died before announcing it."""
        epoch, known = self.leader_epoch, self._host.leader_epochs
        if known.of(self.key) < epoch:
            self._host.spawn(known.raised(self.topic, self.partition, self.key, epoch))

    # --- bounds ---

    @property
    def start(self) -> int:
        return self.reader.start

    @property
    def earliest(self) -> int:
        return self.reader.start

    @property
    def end(self) -> int:
        return self.reader.end

    def bounds(self) -> Bounds:
        reader = self.reader
        high_watermark = reader.end
        if not reader.state.transactions.open:
            return reader.start, reader.state.end, high_watermark, high_watermark
        return reader.start, reader.state.end, high_watermark, reader.stable_end

    @property
    def bytes_known(self) -> int:
        return self.reader.bytes_shown

    @property
    def records_known(self) -> int:
        return self.reader.end

    @property
    def bytes_stable(self) -> int:
        return self.reader.bytes_stable

    # --- keeping up with other workers ---

    @property
    def is_loaded(self) -> bool:
        return self.writer.is_loaded

    def received(self, entries: list[Any]) -> None:
        self.writer.received(entries)

    def look(self) -> None:
        self.writer.look()

    def when_loaded(self, done: Completion) -> None:
        self.writer.when_loaded(done)

    def when_current(self, done: Completion) -> None:
        self.writer.when_current(done)

    @property
    def is_watched(self) -> bool:
        if self._is_led:
            return True  # other workers wake the leader
        watcher = self._host.watcher
        return watcher is not None and watcher.tails(self.key)

    def tail_with(self, watcher: Watcher) -> bool:
        watcher.tail(self.key, self.reader.state.end)
        return True

    def store_changed(self) -> None:
        self.writer.store_changed()

    async def loaded(self) -> None:
        if not self.is_loaded:
            await self.current()

    async def load_start(self) -> None:
        await self.reader.load_start()

    # --- appending ---

    def append(self, append: Append) -> None:
        self.writer.append(append)

    def write_marker(self, marker: Marker, done: Completion) -> None:
        if source := self._host.mirror_source(self.topic):
            if marker.number != ADMINISTRATORS:
                done(None)  # no transaction of ours has records in it
                return
            if not source.endswith(MIRROR_ENDED):
                # The source ends it, at this very offset.
                done(KafkaError(ErrorCode.POLICY_VIOLATION, "the topic is a mirror"))
                return
        self.writer.append(MarkerAppend(marker, time.time_ns() // 1_000_000, done))

    def transactions_left_open(self) -> set[int]:
        """The producers of those that were open when the current leader epoch began."""
        began = self.reader.epochs.start
        open_here = self.reader.state.transactions.open
        return {producer_id for producer_id, opened in open_here.items() if opened.first < began}

    @property
    def is_busy(self) -> bool:
        return self.writer.is_busy

    def gone(self) -> None:
        self.is_gone = True
        self.reader.drop_cursors()
        self.writer.gone()

    # --- reading ---

    def can_read(self, offset: int, client: FetchClient) -> bool:
        return (
            (self._is_led or self.is_watched)
            and self.writer.phase not in NOT_LOADED
            and offset <= self.reader.state.end
        )

    def reader_for(self, client: FetchClient) -> FetchReader:
        return self.committed if client.reads_committed else self.reader

    @property
    def committed(self) -> CommittedReader:
        if self._committed is None:
            self._committed = CommittedReader(self.reader, self._streams)
        return self._committed

    @property
    def has_aborted(self) -> bool:
        transactions = self.reader.state.transactions
        return bool(transactions.aborted or transactions.held_from)

    def find_aborted(self, offset: int, end: int, done: AbortedFound) -> None:
        self.committed.find_aborted(offset, end, done)

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        return await timestamps.offset_for_timestamp(self._host.streams, self.reader, timestamp)

    async def offset_of_largest_timestamp(self) -> OffsetAndTimestamp | None:
        return await timestamps.offset_of_largest_timestamp(self.reader)

    def producers(self) -> Mapping[int, Producer]:
        return self.reader.state.producers

    async def size_in_store(self) -> int:
        return self.reader.size

    # --- removing ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work in the background that outlives the caller."""
        self._host.spawn(work)

    async def delete_before(self, offset: int) -> int:
        return await self._host.retention.delete_before(self, offset)

    async def enforce_retention(self, config: TopicConfig, now_ms: int) -> None:
        await self.loaded()
        await self._host.retention.enforce(self, config, now_ms)

    # --- the effects of the writer ---

    def send(self, entry: InFlightEntry) -> None:
        entry.sent_ns = loop_clock.now_ns
        if entry.even_if_full:
            blob = b"".join(entry.parts)
            self._streams.append_even_if_full(self.key, entry.base, blob, self.writer.replied)
            self.wake_leader()
            return
        self._streams.append(
            self._prefix,
            entry.base,
            entry.parts,
            entry.size,
            entry.nonce,
            self._wake_leader,
            self.writer.replied,
        )

    def wake_leader(self) -> None:
        if self._wake_leader is not None:
            self._streams.wake(self._wake_leader)

    def appended(self, entry: InFlightEntry) -> None:
        host, state = self._host, self.reader.state
        counters = host.counters
        counters.append[(loop_clock.now_ns - entry.sent_ns).bit_length()] += 1
        counters.batches[len(entry.appends).bit_length()] += 1
        size = state.size
        if size // INDEX_EVERY != (size - entry.size) // INDEX_EVERY:
            self._streams.index(self.key, state.max_timestamp, state.end, size)
        if (
            self.writer.entries_unsaved >= host.snapshot_entries
            or size - self._snapshot_size >= SNAPSHOT_BYTES
        ):
            host.spawn(self.save_snapshot())

    def conflict(self) -> None:
        self._host.counters.conflicts += 1

    def refused(self, entry: InFlightEntry, fault: BaseException) -> None:
        if isinstance(fault, StoreFull):
            self._host.store_full(fault)
        elif not isinstance(fault, StoreDown):  # the connection reports that
            logger.error("append to %r refused by the store: %s", self.reader, fault)

    # --- reserving offsets ---

    def reserve(self, end: int) -> None:
        reserving = self._reservation.extend(end)
        if reserving is not self._reserving:
            self._reserving = reserving
            reserving.add_done_callback(self._reserved)

    def _reserved(self, reserving: asyncio.Task[bool]) -> None:
        if not reserving.cancelled():
            self.writer.reserved(reserving.exception() or reserving.result())

    async def release(self) -> None:
        """The worker stops: reserve nothing, so that a store that restarts is seen to be intact."""
        writer = self.writer
        if writer.is_loaded and not writer.is_busy and self._reservation.ceiling:
            self._reservation.loaded(0, 0)
            await self._host.integrity.release(self.key)

    def read(self, offset: int, count: int) -> None:
        self._streams.read_on(self.key, offset, count, self.writer.entries_read)

    def stream_missing(self) -> None:
        self.gone()

    def _state_read(self, state: LogState, reserved: int) -> None:
        self.writer.state_loaded(state)
        self._snapshot_size = state.size
        self._reservation.loaded(reserved, state.end)

    def ready(self) -> None:
        reader = self.reader
        if reader.epochs.current and reader.state.transactions.open:
            self._host.transactions_left_open(self.topic, self.partition)

    # --- snapshots ---

    async def save_snapshot(self) -> None:
        """Keep the state beside the log, so that what it covers is not read at the next load."""
        state = self.reader.state
        state.forget_producers(time.time_ns() // 1_000_000, self._host.producers_kept_ms())
        self.writer.entries_unsaved = 0
        self._snapshot_size = state.size
        end, snapshot, store_id = state.end, state.snapshot(), self._host.integrity.store_id
        key = self.key
        try:
            if aborted := state.transactions.unsaved():
                await self._streams.save_aborted(key, aborted)  # first: a snapshot leaves them out
                state.transactions.saved(aborted)
            await self._streams.save_snapshot(key, end, snapshot, store_id)
        except StoreFault as fault:
            logger.warning("snapshot of %r not saved: %s", self.reader, fault)
