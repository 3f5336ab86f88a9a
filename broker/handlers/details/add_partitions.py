"""An AddPartitionsToTxn request: its transactions are served at the same time.

If one partition of a transaction is refused, none of them is added. Another worker names topics by
id, has checked them, and gets the transaction's number.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.placement import SLOTS
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import INTERNAL
from moldau.broker.txn.effects import AddAnswer, Answer
from moldau.broker.txn.events import Add
from moldau.broker.txn.record import GROUP_OFFSETS, NO_NUMBER, TxnPartition, group_offsets_partition
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)

FIRST_VERSION_WITH_MANY = 4

RequestPosition = tuple[int, int]  # position of the topic in the request, and partition


class TransactionRequest(NamedTuple):
    """One transaction of a request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: list[AddPartitionsToTxnTopic]


class AddCall:
    """A request. The reply is sent when all of its transactions are answered."""

    def __init__(
        self,
        broker: Broker,
        call: Call,
        wanted: list[TransactionRequest],
        denied: frozenset[str] = frozenset(),
    ) -> None:
        """`denied`: topics that the client may not write."""
        self._denied = denied
        self._broker = broker
        self._call = call
        self._version = call.header.api_version
        self._wanted = wanted
        self._results: list[list[AddPartitionsToTxnTopicResult]] = [[] for _ in wanted]
        self._left = len(wanted)

    def start(self) -> None:
        if not self._wanted:
            self._reply()
        for index, one in enumerate(self._wanted):
            self._add(index, one)

    def refuse_all(self, error: ErrorCode) -> None:
        for index in range(len(self._wanted)):
            self.done(index, {}, error)

    def _add(self, index: int, one: TransactionRequest) -> None:
        places: dict[RequestPosition, TxnPartition] = {}
        refused: dict[RequestPosition, ErrorCode] = {}
        for at, topic in enumerate(one.topics):
            for partition in topic.partitions:
                found = self._place(topic, partition)
                if isinstance(found, ErrorCode):
                    refused[at, partition] = found
                else:
                    places[at, partition] = found
        if refused:  # none is added
            self.done(index, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
            return
        event = Add(
            AddReply(self, index, places),
            one.producer_id,
            one.producer_epoch,
            tuple(places.values()),
            one.verify_only,
            self._version,
            waits=not self._call.is_from_worker,
        )
        self._broker.transactions.submit(one.transactional_id, event)

    def _place(self, topic: AddPartitionsToTxnTopic, partition: int) -> TxnPartition | ErrorCode:
        if self._call.is_from_worker:
            return TxnPartition(topic.name, topic.topic_id, partition)
        is_internal = topic.name in INTERNAL and self._version < FIRST_VERSION_WITH_MANY
        if is_internal or topic.name in self._denied:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED  # as in Kafka
        if topic.name == GROUP_OFFSETS and 0 <= partition < SLOTS:
            return group_offsets_partition(partition)
        known = self._broker.topics.get(topic.name)
        if known is None or not 0 <= partition < known.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known.native:
            return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        return TxnPartition(known.name, known.topic_id, partition)

    def done(
        self,
        index: int,
        errors: dict[RequestPosition, ErrorCode],
        others: ErrorCode,
        number: int = NO_NUMBER,
    ) -> None:
        """A transaction is answered: `errors` of some partitions, and the error of all others."""
        shown = number if self._call.is_from_worker else NO_NUMBER
        self._results[index] = [
            AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnPartitionResult(
                        partition, errors.get((at, partition), others), shown
                    )
                    for partition in topic.partitions
                ],
            )
            for at, topic in enumerate(self._wanted[index].topics)
        ]
        self._left -= 1
        if not self._left:
            self._reply()

    def _reply(self) -> None:
        if self._version < FIRST_VERSION_WITH_MANY:
            (results,) = self._results
            self._call.reply(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))
            return
        self._call.reply(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(one.transactional_id, results)
                    for one, results in zip(self._wanted, self._results, strict=True)
                ]
            )
        )


class AddReply:
    """The coordinator calls it with the answer."""

    __slots__ = ("_adding", "_index", "_places")

    def __init__(
        self, adding: AddCall, index: int, places: dict[RequestPosition, TxnPartition]
    ) -> None:
        self._adding = adding
        self._index = index
        self._places = places

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, AddAnswer)
        errors = {
            position: ErrorCode.TRANSACTION_ABORTABLE  # asked for in v4 and later only
            for position, place in self._places.items()
            if place in answer.missing
        }
        self._adding.done(self._index, errors, answer.error, answer.number)
