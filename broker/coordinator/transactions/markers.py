"""Writes the markers of transactions that have ended to every place, however long that takes.

The leader of a partition appends its marker together with the batches of that moment; the owner of
a slot ends the offsets of its groups. Markers for the same worker, of all transactions, are
gathered into one WriteTxnMarkers at a time. If a leader is down or does not answer, this worker
appends the marker itself, as any worker may; the log leaves out the one that the leader may still
write. Only the owner of a slot can end offsets, so it is asked until it is back.

A request says which id of the store its sender sees. When the store has lost its tail, markers
are written again; a leader that has not noticed yet would say that they are there.

Nothing here fails: a place has its marker, or is tried again, or belongs to a topic that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

from moldau.broker.coordinator.peers import (
    Link,
    Links,
    Outbox,
    StoreView,
    by_topic,
    error_code,
    is_answer_to,
)
from moldau.broker.errors import ErrorCode, StoreFault, code_for, coordinator_code_for
from moldau.broker.log.log import Log
from moldau.broker.log.writing.append import Marker
from moldau.broker.placement import leader_of
from moldau.broker.topics.topics import Topic
from moldau.broker.txn.effects import WriteMarkers
from moldau.broker.txn.record import GROUP_OFFSETS, TxnPartition
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from moldau.broker.wire.schema import Message

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
    """Writes one marker at one place of this worker: to a partition's log, or to the groups of a
    slot. The markers of this worker's own transactions and WriteTxnMarkers use it.

    It may be called any number of times for the same marker: the log leaves out one that is there.
    `spawn` runs the steps that have to wait for the store.
    """

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


VERSION = 2  # of WriteTxnMarkers
OURS = 2  # TransactionVersion: the coordinator epoch is the transaction's number
PLACES_AT_ONCE = 2000  # in a request: an answer within 2 s must be possible
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0
LOG_EVERY_S = 10.0

GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Ending:
    """A transaction whose markers are being written."""

    def __init__(
        self, marker: Marker, places: Iterable[TxnPartition], done: Callable[[], None]
    ) -> None:
        self.marker = marker
        self.left = set(places)
        self.done = done
        self.is_over = False  # done, or of no interest any more
        self.failed: list[TxnPartition] = []  # to be tried again
        self.retry_s = FIRST_RETRY_S


PlacesByEnding = dict[Ending, list[TxnPartition]]


class Markers:
    def __init__(
        self,
        local: LocalMarkers,
        links: Links,
        store: StoreView,
        *,
        worker: int,
        workers: int,
    ) -> None:
        self._local = local
        self.store = store
        self._worker = worker
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._endings: dict[tuple[str, int], Ending] = {}  # by transactional id and number
        self._outboxes = {
            other: MarkersOutbox(
                self, partial(links.link, other, ApiKey.WRITE_TXN_MARKERS, VERSION)
            )
            for other in range(workers)
            if other != worker
        }
        self._log_at = 0.0

    def __len__(self) -> int:
        """How many transactions are ending."""
        return len(self._endings)

    def write(self, wanted: WriteMarkers, done: Callable[[], None]) -> None:
        """Call `done`, later, once every place has its marker.

        A second call for the same transaction begins again: the store may have lost some.
        """
        marker = Marker(wanted.producer_id, wanted.producer_epoch, wanted.number, wanted.commit)
        key = (wanted.transactional_id, wanted.number)
        before = self._endings.get(key)
        if before is not None:
            before.is_over = True
        ending = Ending(marker, wanted.partitions, partial(self._end, key, done))
        self._endings[key] = ending
        for place in wanted.partitions:
            self._send(ending, place)

    def is_writing(self, producers: Collection[int]) -> bool:
        """Whether markers of one of these producers are being written."""
        return any(each.marker.producer_id in producers for each in self._endings.values())

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Stop writing markers of these transactional ids: whoever loads them begins again."""
        for key in [key for key in self._endings if is_forgotten(key[0])]:
            self._endings.pop(key).is_over = True

    def _end(self, key: tuple[str, int], done: Callable[[], None]) -> None:
        del self._endings[key]
        self._loop.call_soon(done)

    # --- one place ---

    def _send(self, ending: Ending, place: TxnPartition) -> None:
        if place.topic == GROUP_OFFSETS:
            target = place.partition % self._workers
        else:
            target = leader_of(place.topic, place.partition, self._workers)
        if target == self._worker:
            self._apply(ending, place)
        else:
            self._outboxes[target].add(ending, place)

    def _apply(self, ending: Ending, place: TxnPartition) -> None:
        try:
            self._local.write(ending.marker, place, partial(self.answered, ending, place))
        except Exception:
            # A defect of ours. Without another attempt the transaction would never end.
            logger.exception("a marker in %s-%d", place.topic, place.partition)
            self._retry(ending, place, "a defect")

    def answered(self, ending: Ending, place: TxnPartition, error: ErrorCode) -> None:
        """This worker or another one has answered."""
        if ending.is_over:
            return
        if error is ErrorCode.NONE:
            self._written(ending, place)
        elif error in GONE and place.topic != GROUP_OFFSETS:
            self._local.spawn(self._look_for(ending, place))
        else:
            self._retry(ending, place, error.name)

    def unanswered(self, ending: Ending, place: TxnPartition) -> None:
        """The worker that was asked is down."""
        if ending.is_over:
            return
        if place.topic == GROUP_OFFSETS:
            self._retry(ending, place, "the owner of the group does not answer")
        else:
            self._apply(ending, place)

    def _written(self, ending: Ending, place: TxnPartition) -> None:
        ending.left.discard(place)
        if not ending.left:
            ending.is_over = True
            ending.done()

    async def _look_for(self, ending: Ending, place: TxnPartition) -> None:
        """Whoever was asked does not know the topic: is it gone, or only not known there?"""
        try:
            is_gone = await self._local.find(place) is None
        except StoreFault as fault:
            if not ending.is_over:
                self._retry(ending, place, str(fault))
            return
        if ending.is_over:
            return
        if is_gone:
            self._written(ending, place)
        else:
            self._retry(ending, place, "the topic is not known there yet")

    # --- trying again ---

    def _retry(self, ending: Ending, place: TxnPartition, reason: str) -> None:
        now = self._loop.time()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            logger.warning(
                "marker of producer %d, transaction %d, in %s-%d: %s; tried again, as are others",
                ending.marker.producer_id,
                ending.marker.number,
                place.topic,
                place.partition,
                reason,
            )
        if not ending.failed:
            self._loop.call_later(ending.retry_s, self._again, ending)
            ending.retry_s = min(2 * ending.retry_s, LAST_RETRY_S)
        ending.failed.append(place)

    def _again(self, ending: Ending) -> None:
        failed, ending.failed = ending.failed, []
        for place in failed:
            if not ending.is_over:
                self._send(ending, place)


class MarkersOutbox(Outbox[Ending, TxnPartition]):
    """The markers for another worker."""

    def __init__(self, markers: Markers, link: Callable[[], Link]) -> None:
        super().__init__()
        self._markers = markers
        self._link = link

    def _flush(self) -> None:
        link = self._link()
        if link.is_busy:
            return
        for ending in [each for each in self._gathered if each.is_over]:
            del self._gathered[ending]
        if taken := self._take(PLACES_AT_ONCE):
            for places in taken.values():
                places.sort()  # as they are in the request
            link.send(_request(taken, self._markers.store.store_id), partial(self._answered, taken))

    def _answered(self, taken: PlacesByEnding, response: Message | None) -> None:
        outcome = None
        if isinstance(response, WriteTxnMarkersResponse):
            outcome = _errors(taken, response)
        try:
            for index, (ending, places) in enumerate(taken.items()):
                for place_at, place in enumerate(places):
                    if outcome is None:
                        self._markers.unanswered(ending, place)
                    else:
                        self._markers.answered(ending, place, outcome[index][place_at])
        finally:
            self._schedule()


def _request(taken: PlacesByEnding, store_id: bytes) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        store_id=store_id,
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                topics=[
                    WritableTxnMarkerTopic(topic.name, topic.partitions, topic_id=topic.topic_id)
                    for topic in by_topic(places)
                ],
                coordinator_epoch=marker.number,
                transaction_version=OURS,
            )
            for marker, places in ((ending.marker, places) for ending, places in taken.items())
        ],
    )


def _errors(
    taken: PlacesByEnding, response: WriteTxnMarkersResponse
) -> list[list[ErrorCode]] | None:
    """Error codes in the order of the request, which workers keep. None: not an answer."""
    answered = [
        [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in marker.topics
            for partition in topic.partitions
        ]
        for marker in response.markers
    ]
    if not is_answer_to(taken.values(), answered):
        logger.error("an answer to WriteTxnMarkers does not match the request")
        return None
    return [[error_code(row[2]) for row in rows] for rows in answered]
