"""Writes one marker at one place of this worker: to a partition's log, or to the groups of a slot.

The markers of this worker's own transactions and WriteTxnMarkers use it. It may be called any
number of times for the same marker: the log leaves out one that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from moldau.broker.errors import ErrorCode, StoreFault, code_for, coordinator_code_for
from moldau.broker.log.log import Log
from moldau.broker.log.writing.markers import Marker
from moldau.broker.topics.topics import Topic
from moldau.broker.txn.record import GROUP_OFFSETS, TxnPartition

logger = logging.getLogger("moldau.coordinator")

Done = Callable[[ErrorCode], None]


class Topics(Protocol):
    def known(self, name: str, topic_id: bytes) -> Topic | None: ...
    async def find_by(self, name: str, topic_id: bytes) -> Topic | None: ...
    async def refresh(self, name: str) -> Topic | None: ...


class Logs(Protocol):
    def log_for(self, topic: Topic, partition: int) -> Log: ...


class PendingOffsets(Protocol):
    async def end(
        self, slot: int, producer_id: int, producer_epoch: int, number: int, commit: bool
    ) -> None: ...


class LocalMarkers:
    """`spawn` runs what cannot be done by callbacks."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        pending_offsets: PendingOffsets,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._pending_offsets = pending_offsets
        self.spawn = spawn

    def write(self, marker: Marker, place: TxnPartition, done: Done) -> None:
        """Call `done`, at once or later. UNKNOWN_TOPIC_OR_PARTITION: there is no such place, as far
        as the store knows too."""
        if place.topic == GROUP_OFFSETS:
            self.spawn(self._end_offsets(marker, place.partition, done))
            return
        topic = self._topics.known(place.topic, place.topic_id)
        if topic is not None and 0 <= place.partition < topic.partitions:
            self._append(marker, topic, place.partition, done)
        else:
            self.spawn(self._find(marker, place, done))

    def _append(self, marker: Marker, topic: Topic, partition: int, done: Done) -> None:
        self._logs.log_for(topic, partition).write_marker(marker, partial(_report, done))

    async def _find(self, marker: Marker, place: TxnPartition, done: Done) -> None:
        """Look for a place that this worker does not know: it may be new, or gone."""
        try:
            topic = await self.find(place)
        except StoreFault as fault:
            done(code_for(fault))
            return
        if topic is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            self._append(marker, topic, place.partition, done)

    async def find(self, place: TxnPartition) -> Topic | None:
        """The topic of a place that exists; the store is asked if need be. Raises StoreFault."""
        topic = await self._topics.find_by(place.topic, place.topic_id)
        if topic is not None and place.partition >= topic.partitions:
            topic = await self._topics.refresh(topic.name)
        return None if topic is None or not 0 <= place.partition < topic.partitions else topic

    async def _end_offsets(self, marker: Marker, slot: int, done: Done) -> None:
        error = ErrorCode.NONE
        try:
            await self._pending_offsets.end(slot, *marker)
        except StoreFault as fault:
            error = coordinator_code_for(fault)
        except Exception:
            # A defect of ours. The caller must get an outcome, or it would never try again.
            logger.exception("offsets of producer %d cannot be ended", marker.producer_id)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        done(error)


def _report(done: Done, fault: BaseException | None) -> None:
    done(ErrorCode.NONE if fault is None else code_for(fault))
