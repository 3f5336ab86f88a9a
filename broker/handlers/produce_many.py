"""Produce for several partitions, or without a reply (acks=0): see produce.py.

The batches of a request are appended independently; the reply goes out when all have an outcome.
"""

from __future__ import annotations

from moldau.broker.errors import KafkaError, StoreTimeout
from moldau.broker.handlers.authorization import TOPIC, denial
from moldau.broker.handlers.context import Broker
from moldau.broker.handlers.lookup import check_writable, nothing_to_write
from moldau.broker.handlers.produce_errors import for_version
from moldau.broker.handlers.produce_route import ALL_REPLICAS, fill_refusal, now_ms, replicas_wanted
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


class ProduceCall:
    """Any Produce request: replies when every partition has its answer."""

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
        """`denied`: which of its topics the client may not write."""
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
        """Would `admit_all` hold the event loop for long?"""
        return any(
            topic is not None and is_large(item.records, topic.config)
            for topic, data in zip(topics, self.request.topic_data, strict=True)
            for item in data.partition_data
        )

    def unpacked_room(self, topics: list[Topic | None]) -> int:
        """How many bytes the largest of its batches may unpack to: they are unpacked in turn."""
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
        """Each batch of the request as it may be appended, or why it may not. Pure.

        `at_once`: in the event loop; raises UnpacksLarge when that would take too long.
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
        """Of a batch in a transaction."""
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
        """Fail what has no answer yet. What is in flight stays there until its outcome is known."""
        late = StoreTimeout("the store did not answer in time")
        for append in self.appends:
            if not append.is_answered:
                append.given_up = True
                self._refuse(append.answer, late)
        self._finish()

    def _finish(self) -> None:
        self.appends.clear()  # they refer to us: a cycle would keep the batches alive
        if self.request.acks != 0:
            self.call.reply(self.response)
        elif self.failed:
            # The only way to report a fault to a producer that reads no reply, as in Kafka.
            self.call.connection.abort()
        else:
            self.call.no_reply()


class PartitionAppend(Append):
    """One partition's batch of a request with several, or of one that wants no answer."""

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
            error = for_version(error, self.owner.call.header.api_version)
        self.owner.answered(self, error)
