"""The log of an ordinary partition: Kafka's record batches in a Redis stream.

Put together from a reader (reader.py), an appender (appender.py) and its replica of the log's state
(replica.py); this module is their common face, the `Log` that handlers use.
"""

from __future__ import annotations

from typing import Protocol

from broker.log import timestamps
from broker.log.appender import LogAppender
from broker.log.epochs import Epochs
from broker.log.flight import Append
from broker.log.leader_epochs import LeaderEpochs
from broker.log.log import Bounds, FetchClient, Log, OffsetAndTimestamp
from broker.log.reader import LogReader
from broker.log.replica import NOT_LOADED, LogReplica, ReplicaHost
from broker.log.retention import Retention
from broker.log.tail import Tail
from broker.settings.kafka import TopicConfig
from broker.store.watch import Watcher


class LogHost(ReplicaHost, Protocol):
    """What a log needs of the worker it lives in."""

    retention: Retention
    leader_epochs: LeaderEpochs
    watcher: Watcher | None


class PartitionLog(Log):
    """`wake`: the command that notifies the leader of an append; None when this worker leads."""

    replica: LogReplica

    def __init__(
        self, host: LogHost, topic: str, partition: int, key: bytes, tail: Tail, wake: bytes | None
    ) -> None:
        super().__init__(topic, partition, key)
        self._host = host
        self._is_led = wake is None
        self.reader = LogReader(host.streams, topic, partition, key, tail)
        self.reader.on_epoch = self._epoch_found
        self.appender = LogAppender(host, self.reader, self.waiters, wake, self.gone)
        self.replica = self.appender.replica

    @property
    def epochs(self) -> Epochs:
        return self.reader.epochs

    @property
    def leader_epoch(self) -> int:
        return self.reader.epochs.current

    def _epoch_found(self) -> None:
        """In the state of the log. Who began it may have died before it was announced."""
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
        return reader.start, reader.state.end, high_watermark, high_watermark

    @property
    def bytes_known(self) -> int:
        return self.reader.bytes_shown

    # --- keeping up with other workers ---

    @property
    def is_watched(self) -> bool:
        if self._is_led:
            return True  # other workers wake the leader
        watcher = self._host.watcher
        return watcher is not None and watcher.tails(self.key)

    def tail_with(self, watcher: Watcher) -> bool:
        watcher.tail(self.key, self.reader.state.end)
        return True

    def history_changed(self) -> None:
        self.appender.history_changed()

    async def loaded(self) -> None:
        if not self.is_loaded:
            await self.current()

    async def load_start(self) -> None:
        await self.reader.load_start()

    # --- appending ---

    def append(self, append: Append) -> None:
        self.appender.append(append)

    @property
    def is_busy(self) -> bool:
        return self.appender.is_busy

    def gone(self) -> None:
        self.is_gone = True
        self.appender.gone()

    # --- reading ---

    def can_read(self, offset: int, client: FetchClient) -> bool:
        return (
            (self._is_led or self.is_watched)
            and self.replica.phase not in NOT_LOADED
            and offset <= self.reader.state.end
        )

    def reader_for(self, client: FetchClient) -> LogReader:
        return self.reader

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        return await timestamps.offset_for_timestamp(self._host.streams, self.reader, timestamp)

    async def offset_of_largest_timestamp(self) -> OffsetAndTimestamp | None:
        return await timestamps.offset_of_largest_timestamp(self.reader)

    async def size_in_store(self) -> int:
        return self.reader.size

    # --- removing ---

    async def delete_before(self, offset: int) -> int:
        return await self._host.retention.delete_before(self.replica, offset)

    async def enforce_retention(self, config: TopicConfig, now_ms: int) -> None:
        await self.loaded()
        await self._host.retention.enforce(self.replica, config, now_ms)
