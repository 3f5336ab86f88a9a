"""Enlists partitions in transactions, as Kafka's AddPartitionsToTxnManager does.

Batches and offset commits use this. Success means that the partition is durably part of transaction
`number`, which is not completed before the partition has its marker.

Requests of one turn of the event loop to the same owner are sent together: as one event if this
worker is the owner, else as one AddPartitionsToTxn; the next one gathers while it is answered. If
the producer's previous transaction is still ending, the request waits for up to 100 ms. When this
worker is the owner, `broker/txn` waits. Another worker never does, since all producers behind that
link would wait too: the request is repeated from here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from moldau.broker.coordinator.peers import (
    Link,
    Links,
    Outbox,
    StoreView,
    by_topic,
    error_code,
    is_answer_to,
)
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.txn.effects import AddAnswer, Answer
from moldau.broker.txn.events import Add
from moldau.broker.txn.record import NO_NUMBER, TxnPartition
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.schema import Message

logger = logging.getLogger("moldau.coordinator")

VERSION = 5  # of AddPartitionsToTxn
PLACES_AT_ONCE = 2000  # in a request
MAX_WAITING = 10_000  # requests for one owner; clients retry those that are refused
WAIT_FOR_MARKERS_S = 0.1
FIRST_RETRY_S = 0.005

Enlisted = Callable[[ErrorCode, int], None]


class Transactions(Protocol):
    """The transactional ids of this worker."""

    def knows(self, store_id: bytes) -> bool: ...
    def submit(self, transactional_id: str, event: Add, /) -> object: ...


class ProducerKey(NamedTuple):
    """Requests with the same key go together."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


class Pending:
    """A partition that is being enlisted."""

    __slots__ = ("done", "place", "retry_s", "until")

    def __init__(self, place: TxnPartition, done: Enlisted) -> None:
        self.place = place
        self.done = done
        self.retry_s = FIRST_RETRY_S
        self.until: float | None = None  # when CONCURRENT_TRANSACTIONS is passed on

    def answer(self, error: ErrorCode, number: int) -> None:
        if error is ErrorCode.PRODUCER_FENCED:
            # Neither Produce nor TxnOffsetCommit has it.
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        try:
            self.done(error, NO_NUMBER if error else number)
        except Exception:
            # A defect in one callback must not cost the others their answers.
            logger.exception("%s-%d cannot go on after it was enlisted", *self.place[::2])


PendingByProducer = dict[ProducerKey, list[Pending]]


class Enlistment:
    """`store`: as this worker sees it. An owner that sees another store id may not know
    yet that its transactions have lost something: its answer would be worth nothing."""

    def __init__(
        self,
        transactions: Transactions,
        links: Links,
        store: StoreView,
        *,
        worker: int,
        workers: int,
    ) -> None:
        self._workers = workers
        self._queues: dict[int, OwnerQueue] = {}
        for owner in range(workers):
            if owner == worker:
                self._queues[owner] = LocalOwnerQueue(store, transactions)
            else:
                link = partial(links.link, owner, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION)
                self._queues[owner] = RemoteOwnerQueue(store, link)

    def enlist(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        place: TxnPartition,
        *,
        verify_only: bool,
        done: Enlisted,
    ) -> None:
        """Call `done` exactly once with the number of the transaction, or with an error:
        TRANSACTION_ABORTABLE if the place is not in it, and was not to be added."""
        producer = ProducerKey(transactional_id, producer_id, producer_epoch, verify_only)
        owner = owner_of(transactional_id, self._workers)
        self._queues[owner].add(producer, Pending(place, done))


class OwnerQueue(Outbox[ProducerKey, Pending]):
    """Gathers the requests for one owner."""

    def __init__(self, store: StoreView) -> None:
        super().__init__()
        self._store = store
        self._count = 0

    def add(self, key: ProducerKey, value: Pending) -> None:
        if self._count >= MAX_WAITING:
            value.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_NUMBER)
            return
        self._count += 1
        super().add(key, value)

    def _take(self, most: int) -> PendingByProducer:
        taken = super()._take(most)
        self._count -= sum(map(len, taken.values()))
        return taken


class LocalOwnerQueue(OwnerQueue):
    """This worker is the owner."""

    def __init__(self, store: StoreView, transactions: Transactions) -> None:
        super().__init__(store)
        self._transactions = transactions

    def _flush(self) -> None:
        is_known = self._transactions.knows(self._store.store_id)
        for producer, pending in self._take(MAX_WAITING).items():
            if not is_known:
                for one in pending:
                    one.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_NUMBER)
                continue
            event = Add(
                _ReplyHandle(pending),
                producer.producer_id,
                producer.producer_epoch,
                tuple(dict.fromkeys(one.place for one in pending)),
                producer.verify_only,
                VERSION,
            )
            self._transactions.submit(producer.transactional_id, event)


class _ReplyHandle:
    """Answered by the transaction."""

    def __init__(self, pending: list[Pending]) -> None:
        self._pending = pending

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, AddAnswer)
        for one in self._pending:
            is_missing = not answer.error and one.place in answer.missing
            one.answer(
                ErrorCode.TRANSACTION_ABORTABLE if is_missing else answer.error, answer.number
            )


class RemoteOwnerQueue(OwnerQueue):
    """Another worker is the owner."""

    def __init__(self, store: StoreView, link: Callable[[], Link]) -> None:
        super().__init__(store)
        self._link = link

    def _flush(self) -> None:
        link = self._link()
        if self._gathered and not link.is_busy:
            taken = self._take(PLACES_AT_ONCE)
            for pending in taken.values():
                pending.sort(key=_place)  # as they are in the request
            link.send(_request(taken, self._store.store_id), partial(self._answered, taken))

    def _answered(self, taken: PendingByProducer, response: Message | None) -> None:
        outcomes = None
        if isinstance(response, AddPartitionsToTxnResponse) and not response.error_code:
            outcomes = _outcomes(taken, response)
        for index, (producer, pending) in enumerate(taken.items()):
            if outcomes is None:
                for one in pending:
                    one.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_NUMBER)
            else:
                for one, (error, number) in zip(pending, outcomes[index], strict=True):
                    self._answer(producer, one, error, number)
        self._schedule()

    def _answer(self, producer: ProducerKey, one: Pending, error: ErrorCode, number: int) -> None:
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and not producer.verify_only:
            now = self._loop.time()
            if one.until is None:
                one.until = now + WAIT_FOR_MARKERS_S
            if now < one.until:
                # Never less than the first delay: the loop's clock counts milliseconds, so the rest
                # of the last one would be spent in a busy loop.
                delay = max(min(one.retry_s, one.until - now), FIRST_RETRY_S)
                one.retry_s *= 2
                self._loop.call_later(delay, self.add, producer, one)
                return
        one.answer(error, number)


def _place(one: Pending) -> TxnPartition:
    return one.place


def _request(taken: PendingByProducer, store_id: bytes) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        store_id=store_id,
        transactions=[
            AddPartitionsToTxnTransaction(
                producer.transactional_id,
                producer.producer_id,
                producer.producer_epoch,
                producer.verify_only,
                [
                    AddPartitionsToTxnTopic(topic.name, topic.partitions, topic_id=topic.topic_id)
                    for topic in by_topic(one.place for one in pending)
                ],
            )
            for producer, pending in taken.items()
        ],
    )


def _outcomes(
    taken: PendingByProducer, response: AddPartitionsToTxnResponse
) -> list[list[tuple[ErrorCode, int]]] | None:
    """Errors and numbers in the order of the request, which workers keep. None: not an answer."""
    answered = [
        [
            (topic.name, each.partition_index, each.partition_error_code, each.transaction_number)
            for topic in result.topic_results
            for each in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    ]
    asked = ([one.place for one in pending] for pending in taken.values())
    ids = [result.transactional_id for result in response.results_by_transaction]
    if not is_answer_to(asked, answered) or ids != [one.transactional_id for one in taken]:
        logger.error("an answer to AddPartitionsToTxn does not match the request")
        return None
    return [[(error_code(row[2]), row[3]) for row in rows] for rows in answered]
