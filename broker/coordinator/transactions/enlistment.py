"""Asking the owner of a transactional id: is this place in the transaction, and in which one?

A batch joins its transaction so, and offsets do. The yes means that the place is durably among
those of transaction `number`, and the transaction is not completed before that marker is written.

What one turn asks of an owner goes together: in one event if it is this worker, else in one
AddPartitionsToTxn, while which the next one gathers. A transaction whose predecessor is still
ending is waited for, 100 ms at most. If this worker owns it, `broker/txn` does that. Another worker
never waits, since all producers behind that link would wait too: it is asked again from here.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from moldau.broker.coordinator.peers import Link, error_code
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.txn.effects import AddAnswer, Answer
from moldau.broker.txn.events import Add
from moldau.broker.txn.record import Place
from moldau.broker.txn.serial import NO_NUMBER
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
MAX_WAITING = 10_000  # asks of one owner; clients send again what is refused
WAIT_FOR_MARKERS_S = 0.1
FIRST_RETRY_S = 0.005

Joined = Callable[[ErrorCode, int], None]


class Links(Protocol):
    def link(self, worker: int, api: ApiKey, version: int) -> Link: ...


class Transactions(Protocol):
    """Those of this worker."""

    def knows(self, history: bytes) -> bool: ...
    def submit(self, transactional_id: str, event: Add) -> None: ...


class Question(NamedTuple):
    """What asks with the same of these goes together."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


class Ask:
    """One place, and who waits for the answer."""

    __slots__ = ("done", "place", "retry_s", "until")

    def __init__(self, place: Place, done: Joined) -> None:
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
            logger.exception("%s-%d cannot go on after it has joined", *self.place[::2])


Asks = dict[Question, list[Ask]]


class Joins:
    """`history`: of the store, as this worker sees it. An owner that sees another one may not know
    yet that its transactions have lost something: its answer would be worth nothing."""

    def __init__(
        self,
        transactions: Transactions,
        links: Links,
        history: Callable[[], bytes],
        *,
        worker: int,
        workers: int,
    ) -> None:
        self._workers = workers
        self._desks: dict[int, Desk] = {}
        for owner in range(workers):
            if owner == worker:
                self._desks[owner] = LocalDesk(history, transactions)
            else:
                link = partial(links.link, owner, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION)
                self._desks[owner] = RemoteDesk(history, link)

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        place: Place,
        *,
        verify_only: bool,
        done: Joined,
    ) -> None:
        """Call `done` exactly once with the number of the transaction, or with an error:
        TRANSACTION_ABORTABLE if the place is not in it, and was not to be added."""
        question = Question(transactional_id, producer_id, producer_epoch, verify_only)
        owner = owner_of(transactional_id, self._workers)
        self._desks[owner].add(question, Ask(place, done))


class Desk(ABC):
    """Gathers what is asked of one owner."""

    def __init__(self, history: Callable[[], bytes]) -> None:
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._asks: Asks = {}
        self._count = 0
        self._is_scheduled = False

    def add(self, question: Question, ask: Ask) -> None:
        if self._count >= MAX_WAITING:
            ask.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_NUMBER)
            return
        self._asks.setdefault(question, []).append(ask)
        self._count += 1
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._is_scheduled = False
        self._flush()

    @abstractmethod
    def _flush(self) -> None:
        """Ask what has gathered."""

    def _take(self, most: int) -> Asks:
        taken: Asks = {}
        while self._asks and most > 0:
            question, asks = next(iter(self._asks.items()))
            some = asks[:most]
            del asks[:most]
            if not asks:
                del self._asks[question]
            most -= len(some)
            self._count -= len(some)
            taken[question] = some
        return taken


class LocalDesk(Desk):
    """This worker is the owner."""

    def __init__(self, history: Callable[[], bytes], transactions: Transactions) -> None:
        super().__init__(history)
        self._transactions = transactions

    def _flush(self) -> None:
        is_known = self._transactions.knows(self._history())
        for question, asks in self._take(MAX_WAITING).items():
            if not is_known:
                for ask in asks:
                    ask.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NO_NUMBER)
                continue
            event = Add(
                _Token(asks),
                question.producer_id,
                question.producer_epoch,
                tuple(dict.fromkeys(ask.place for ask in asks)),
                question.verify_only,
                VERSION,
            )
            self._transactions.submit(question.transactional_id, event)


class _Token:
    """Answered by the transaction."""

    def __init__(self, asks: list[Ask]) -> None:
        self._asks = asks

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, AddAnswer)
        for ask in self._asks:
            is_missing = not answer.error and ask.place in answer.missing
            ask.answer(
                ErrorCode.TRANSACTION_ABORTABLE if is_missing else answer.error, answer.number
            )


class RemoteDesk(Desk):
    """Another worker is the owner."""

    def __init__(self, history: Callable[[], bytes], link: Callable[[], Link]) -> None:
        super().__init__(history)
        self._link = link

    def _flush(self) -> None:
        link = self._link()
        if self._asks and not link.is_busy:  # else its answer brings us here again
            taken = self._take(PLACES_AT_ONCE)
            for asks in taken.values():
                asks.sort(key=_place)  # as they are in the request
            link.send(_request(taken, self._history()), partial(self._answered, taken))

    def _answered(self, taken: Asks, response: Message | None) -> None:
        outcomes = None
        if isinstance(response, AddPartitionsToTxnResponse) and not response.error_code:
            outcomes = _outcomes(taken, response)
        for index, (question, asks) in enumerate(taken.items()):
            if outcomes is None:
                for ask in asks:
                    ask.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_NUMBER)
            else:
                for ask, (error, number) in zip(asks, outcomes[index], strict=True):
                    self._answer(question, ask, error, number)
        self._schedule()

    def _answer(self, question: Question, ask: Ask, error: ErrorCode, number: int) -> None:
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and not question.verify_only:
            now = self._loop.time()
            if ask.until is None:
                ask.until = now + WAIT_FOR_MARKERS_S
            if now < ask.until:
                # Never less than the first: the loop's clock counts milliseconds, and what is left
                # of the last one would be asked away.
                delay = max(min(ask.retry_s, ask.until - now), FIRST_RETRY_S)
                ask.retry_s *= 2
                self._loop.call_later(delay, self.add, question, ask)
                return
        ask.answer(error, number)


def _place(ask: Ask) -> Place:
    return ask.place


def _request(taken: Asks, history: bytes) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        history=history,
        transactions=[
            AddPartitionsToTxnTransaction(
                question.transactional_id,
                question.producer_id,
                question.producer_epoch,
                question.verify_only,
                _topics(ask.place for ask in asks),
            )
            for question, asks in taken.items()
        ],
    )


def _topics(places: Iterable[Place]) -> list[AddPartitionsToTxnTopic]:
    """Of places that are sorted."""
    topics: list[AddPartitionsToTxnTopic] = []
    for place in places:
        if not topics or (topics[-1].name, topics[-1].topic_id) != place[:2]:
            topics.append(AddPartitionsToTxnTopic(place.topic, topic_id=place.topic_id))
        topics[-1].partitions.append(place.partition)
    return topics


def _outcomes(
    taken: Asks, response: AddPartitionsToTxnResponse
) -> list[list[tuple[ErrorCode, int]]] | None:
    """Errors and numbers in the order of what was asked, which workers keep; None: no answer."""
    answered = [
        [
            (topic.name, each.partition_index, each.partition_error_code, each.transaction_number)
            for topic in result.topic_results
            for each in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    ]
    asked = [[(ask.place.topic, ask.place.partition) for ask in asks] for asks in taken.values()]
    ids = [result.transactional_id for result in response.results_by_transaction]
    if [[row[:2] for row in rows] for rows in answered] != asked or ids != [
        question.transactional_id for question in taken
    ]:
        logger.error("an answer to AddPartitionsToTxn is not about what was asked")
        return None
    return [[(error_code(row[2]), row[3]) for row in rows] for rows in answered]
