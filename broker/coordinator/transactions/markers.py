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
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from moldau.broker.coordinator.peers import Link, Links, error_code
from moldau.broker.coordinator.transactions.local_markers import LocalMarkers
from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.log.writing.markers import Marker
from moldau.broker.placement import leader_of
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


class Due(NamedTuple):
    """Markers of one transaction that are sent together."""

    ending: Ending
    places: list[TxnPartition]  # sorted


class Markers:
    def __init__(
        self,
        local: LocalMarkers,
        links: Links,
        store_id: Callable[[], bytes],
        *,
        worker: int,
        workers: int,
    ) -> None:
        self._local = local
        self.store_id = store_id
        self._worker = worker
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._endings: dict[tuple[str, int], Ending] = {}  # by transactional id and number
        self._outboxes = {
            other: Outbox(self, partial(links.link, other, ApiKey.WRITE_TXN_MARKERS, VERSION))
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


class Outbox:
    """Gathers the markers for another worker: those of one turn, and those that come while the link
    is busy."""

    def __init__(self, markers: Markers, link: Callable[[], Link]) -> None:
        self._markers = markers
        self._link = link
        self._due: dict[Ending, list[TxnPartition]] = {}
        self._is_scheduled = False

    def add(self, ending: Ending, place: TxnPartition) -> None:
        self._due.setdefault(ending, []).append(place)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        link = self._link()
        if link.is_busy:
            return  # its answer brings us here again
        batch = self._take()
        if batch:
            request = _request(batch, self._markers.store_id())
            link.send(request, partial(self._answered, batch))

    def _take(self) -> list[Due]:
        batch: list[Due] = []
        room = PLACES_AT_ONCE
        while self._due and room:
            ending, places = next(iter(self._due.items()))
            if ending.is_over:
                del self._due[ending]
                continue
            some = sorted(places[:room])  # as they are in the request
            del places[:room]
            if not places:
                del self._due[ending]
            room -= len(some)
            batch.append(Due(ending, some))
        return batch

    def _answered(self, batch: list[Due], response: Message | None) -> None:
        outcome = None
        if isinstance(response, WriteTxnMarkersResponse):
            outcome = _errors(batch, response)
        try:
            for due_at, (ending, places) in enumerate(batch):
                for place_at, place in enumerate(places):
                    if outcome is None:
                        self._markers.unanswered(ending, place)
                    else:
                        self._markers.answered(ending, place, outcome[due_at][place_at])
        finally:
            self._schedule()


def _request(batch: list[Due], store_id: bytes) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        store_id=store_id,
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                topics=_topics(places),
                coordinator_epoch=marker.number,
                transaction_version=OURS,
            )
            for marker, places in ((due.ending.marker, due.places) for due in batch)
        ],
    )


def _topics(places: list[TxnPartition]) -> list[WritableTxnMarkerTopic]:
    """`places` are sorted."""
    topics: list[WritableTxnMarkerTopic] = []
    for place in places:
        if not topics or (topics[-1].name, topics[-1].topic_id) != place[:2]:
            topics.append(WritableTxnMarkerTopic(place.topic, topic_id=place.topic_id))
        topics[-1].partition_indexes.append(place.partition)
    return topics


def _errors(batch: list[Due], response: WriteTxnMarkersResponse) -> list[list[ErrorCode]] | None:
    """Error codes in the order of the request, which workers keep. None: not an answer."""
    answered = [
        [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in marker.topics
            for partition in topic.partitions
        ]
        for marker in response.markers
    ]
    asked = [[(place.topic, place.partition) for place in due.places] for due in batch]
    if [[row[:2] for row in rows] for rows in answered] != asked:
        logger.error("an answer to WriteTxnMarkers is not about what was asked")
        return None
    return [[error_code(row[2]) for row in rows] for rows in answered]
