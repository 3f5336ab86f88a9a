"""Produce for several partitions, or without a reply (acks=0): see produce.py.

The batches of a request are appended independently; the reply goes out when all have an outcome.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreTimeout
from moldau.broker.handlers.details.authorization import TOPIC, denial
from moldau.broker.handlers.details.lookup import check_writable, nothing_to_write
from moldau.broker.handlers.details.produce_route import (
    ALL_REPLICAS,
    fill_refusal,
    now_ms,
    replicas_wanted,
)
from moldau.broker.log.log import Log
from moldau.broker.log.writing.append import NO_REPLICAS, Append, Participation
from moldau.broker.log.writing.validation import Admitted, admit, is_large, unpacked_room
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.batch import TRANSACTIONAL, BatchHeader
from moldau.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

FIRST_VERSION_THAT_ADDS_PARTITIONS = 12  # to the transaction of their producer
FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_WITH_CONCURRENT = 12

# The coordinator cannot be asked. Clients expect these errors only from requests to it.
_UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class ProduceCall:
    """Any Produce request. The reply is sent when every partition has its answer."""

    __slots__ = (
        "appends", "broker", "call", "deadline", "denied", "failed", "missing", "request",
        "response",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: ProduceRequest,
        denied: frozenset[int] = frozenset(),
    ) -> None:
        """`denied`: the positions of topics that the client may not write."""
        self.denied = denied
        self.broker = broker
        self.call = call
        self.request = request
        self.response = ProduceResponse()
        self.appends: list[PartitionAppend] = []
        self.missing = 0
        self.failed = False
        self.deadline = broker.loop_time() + request.timeout_ms / 1000

    def is_large(self, topics: list[Topic | None]) -> bool:
        """Whether `admit_all` would block the event loop for long."""
        return any(
            topic is not None and is_large(item.records, topic.config)
            for topic, data in zip(topics, self.request.topic_data, strict=True)
            for item in data.partition_data
        )

    def unpacked_room(self, topics: list[Topic | None]) -> int:
        """The bytes that the largest batch may unpack to: batches are unpacked one by one."""
        return max(
            (
                unpacked_room(item.records, topic.config)
                for topic, data in zip(topics, self.request.topic_data, strict=True)
                if topic is not None
                for item in data.partition_data
            ),
            default=0,
        )

    def admit_all(
        self, topics: list[Topic | None], *, at_once: bool = False
    ) -> list[Admitted | KafkaError]:
        """Validate each batch: returns it as it may be appended, or the error. Pure.

        `at_once`: run in the event loop; raises UnpacksLarge if that would take too long.
        """
        outcomes: list[Admitted | KafkaError] = []
        version, now = self.call.header.api_version, now_ms()
        for number, (topic, data) in enumerate(zip(topics, self.request.topic_data, strict=True)):
            for item in data.partition_data:
                try:
                    if number in self.denied:
                        raise denial(TOPIC)
                    if topic is None:
                        raise nothing_to_write(data.name, data.topic_id)
                    check_writable(topic, item.index)
                    outcome = admit(
                        item.records,
                        topic.config,
                        version,
                        now,
                        has_transactional_id=self.request.transactional_id is not None,
                        at_once=at_once,
                    )
                    outcomes.append(outcome)
                except KafkaError as refusal:
                    outcomes.append(refusal)
        return outcomes

    def append_all(self, topics: list[Topic | None], outcomes: list[Admitted | KafkaError]) -> None:
        following = iter(outcomes)
        for topic, data in zip(topics, self.request.topic_data, strict=True):
            answers = []
            for item in data.partition_data:
                answer = PartitionProduceResponse(item.index)
                answers.append(answer)
                outcome = next(following)
                if isinstance(outcome, KafkaError):
                    self._refuse(answer, outcome)
                    continue
                assert topic is not None
                log = self.broker.logs.log_for(topic, item.index)
                self.appends.append(PartitionAppend(self, answer, log, topic, *outcome))
            self.response.responses.append(TopicProduceResponse(data.name, data.topic_id, answers))
        if not self.appends:
            self._finish()
            return
        self.missing = len(self.appends)
        self.broker.deadlines.add(self)
        for append in tuple(self.appends):
            append.log.append(append)

    def refuse_all(self, fault: BaseException) -> None:
        for data in self.request.topic_data:
            answers = [PartitionProduceResponse(item.index) for item in data.partition_data]
            for answer in answers:
                self._refuse(answer, fault)
            self.response.responses.append(TopicProduceResponse(data.name, data.topic_id, answers))
        self._finish()

    def _refuse(self, answer: PartitionProduceResponse, fault: BaseException) -> None:
        fill_refusal(answer, fault)
        self.failed = True

    def participation(self, header: BatchHeader) -> Participation | None:
        """The part that a batch has in a transaction; None if it is in none."""
        transactional_id = self.request.transactional_id
        if transactional_id is None or not header.attributes & TRANSACTIONAL:
            return None
        adds = self.call.header.api_version >= FIRST_VERSION_THAT_ADDS_PARTITIONS
        return Participation(transactional_id, adds)

    def answered(self, append: PartitionAppend, fault: BaseException | None) -> None:
        if fault is not None:
            self._refuse(append.answer, fault)
        self.missing -= 1
        if self.missing == 0:
            self.broker.deadlines.remove(self)
            self._finish()

    def time_out(self) -> None:
        """Fail what has no answer. Appends in flight stay until their outcome is known."""
        late = StoreTimeout("the store did not answer in time")
        for append in self.appends:
            if not append.is_answered:
                append.given_up = True
                self._refuse(append.answer, late)
        self._finish()

    def _finish(self) -> None:
        self.appends.clear()  # they refer to this object: a cycle would keep the batches alive
        if self.request.acks != 0:
            self.call.reply(self.response)
        elif self.failed:
            # The only way to report a fault to a producer that reads no reply, as in Kafka.
            self.call.connection.abort()
        else:
            self.call.no_reply()


class PartitionAppend(Append):
    """The batch of one partition, in a request with several or without a reply."""

    __slots__ = ("answer", "append_time", "is_answered", "log", "owner", "participation")

    def __init__(
        self,
        owner: ProduceCall,
        answer: PartitionProduceResponse,
        log: Log,
        topic: Topic,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        acks = owner.request.acks
        replicas = replicas_wanted(acks, topic) if acks == ALL_REPLICAS else NO_REPLICAS
        super().__init__(batch, header, replicas, owner.request.timeout_ms)
        self.owner = owner
        self.answer = answer
        self.log = log
        self.append_time = topic.config.log_append_time
        self.is_answered = False
        self.participation = owner.participation(header)

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self.is_answered = True
        if self.given_up:
            return
        answer = self.answer
        answer.base_offset = base_offset
        answer.log_start_offset = self.log.start
        if self.append_time:
            answer.log_append_time_ms = timestamp
        if error is not None and self.participation is not None:
            error = _error_for_version(error, self.owner.call.header.api_version)
        self.owner.answered(self, error)


def _error_for_version(fault: BaseException, version: int) -> BaseException:
    """The error for a transactional producer: retriable if it should send the batch again."""
    if not isinstance(fault, KafkaError):
        return fault
    code = fault.code
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code in _UNAVAILABLE or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_WITH_CONCURRENT
    ):
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    elif code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    return fault if code is fault.code else KafkaError(code, fault.message)
