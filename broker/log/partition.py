"""The log of an ordinary partition: Kafka's record batches in a Redis stream.

A reader (reading/reader.py), a writer (writing/writer.py) and the writer's shell, as the `Log` that
handlers use.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

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
from moldau.broker.log.reading.read_ahead import ReadAhead
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.tail import Tail
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.state.log_state import Producer
from moldau.broker.log.writing.append import Append
from moldau.broker.log.writing.markers import Marker, MarkerAppend
from moldau.broker.log.writing.phases import NOT_LOADED
from moldau.broker.log.writing.shell import WriterHost, WriterShell
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.store_loss.leader_epochs import LeaderEpochs


class LogHost(WriterHost, Protocol):
    """What a log needs of the worker it lives in."""

    retention: Retention
    leader_epochs: LeaderEpochs
    watcher: Watcher | None
    read_ahead: ReadAhead
    unpacking: Unpacking


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
        self.committed = CommittedReader(self.reader, host.streams)
        self.shell = WriterShell(host, self.reader, self.waiters, wake, self.gone)
        self.writer = self.shell.writer

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

    async def save_snapshot(self) -> None:
        await self.shell.save_snapshot()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work in the background that outlives the caller."""
        self._host.spawn(work)

    async def delete_before(self, offset: int) -> int:
        return await self._host.retention.delete_before(self, offset)

    async def enforce_retention(self, config: TopicConfig, now_ms: int) -> None:
        await self.loaded()
        await self._host.retention.enforce(self, config, now_ms)
