"""Produce (key 0): append batches as they come, answer when they are in the store.

KIP-98: idempotence is the log's affair. KIP-467: a refused batch gets a message. KIP-516: topic
ids from v13. Versions 0-2 are advertised for old librdkafka, and refused.

This is the hot path: callbacks, no task per request, no record is decoded unless the topic asks
for it (compaction, recompression).
"""

from __future__ import annotations

import asyncio
import time

from broker.errors import ErrorCode, KafkaError, StoreTimeout, code_for
from broker.handlers.context import Broker
from broker.log.admission import admit
from broker.log.flight import Append
from broker.log.partition import PartitionLog
from broker.log.topics import Topic
from broker.server.connection import Call
from broker.wire.batch import BatchHeader
from broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from broker.wire.schema import NO_UUID

FIRST_VERSION = 3
ALL_REPLICAS = -1
VALID_ACKS = (-1, 0, 1)


def handle(broker: Broker, request: ProduceRequest, call: Call) -> None:
    produce = ProduceCall(broker, call, request)
    if call.header.api_version < FIRST_VERSION:
        produce.refuse_all(KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    elif request.acks not in VALID_ACKS:
        produce.refuse_all(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}"))
    elif request.transactional_id is not None:
        text = "transactions are not served by this broker"
        produce.refuse_all(KafkaError(ErrorCode.INVALID_TXN_STATE, text))
    else:
        topics = [_known_topic(broker, data) for data in request.topic_data]
        if None in topics:
            # Rare: perhaps created by another worker a moment ago. The store knows.
            broker.logs.spawn(_look_up_and_start(broker, produce))
        else:
            produce.start(topics)


def _known_topic(broker: Broker, data: TopicProduceData) -> Topic | None:
    if data.topic_id != NO_UUID:
        return broker.topics.by_id(data.topic_id)
    return broker.topics.get(data.name)


async def _look_up_and_start(broker: Broker, produce: ProduceCall) -> None:
    topics: list[Topic | None] = []
    try:
        for data in produce.request.topic_data:
            if data.topic_id != NO_UUID:
                topics.append(await broker.topics.find_id(data.topic_id))
            else:
                topics.append(await broker.topics.find(data.name))
    except Exception as fault:
        produce.refuse_all(fault)
    else:
        produce.start(topics)


def _unknown(data: TopicProduceData) -> KafkaError:
    if data.topic_id != NO_UUID:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class ProduceCall:
    """One Produce request: replies when every partition has its answer."""

    __slots__ = (
        "appends", "broker", "call", "deadline", "failed", "missing", "request", "response",
    )  # fmt: skip

    def __init__(self, broker: Broker, call: Call, request: ProduceRequest) -> None:
        self.broker = broker
        self.call = call
        self.request = request
        self.response = ProduceResponse()
        self.appends: list[ProduceAppend] = []
        self.missing = 0
        self.failed = False
        self.deadline = 0.0

    def start(self, topics: list[Topic | None]) -> None:
        now_ms = time.time_ns() // 1_000_000
        version = self.call.header.api_version
        for topic, data in zip(topics, self.request.topic_data, strict=True):
            answers = []
            for item in data.partition_data:
                answer = PartitionProduceResponse(item.index)
                answers.append(answer)
                if topic is None or not 0 <= item.index < topic.partitions:
                    self._fill(answer, _unknown(data))
                    continue
                try:
                    batch, header = admit(item.records, topic.config, version, now_ms)
                except KafkaError as refusal:
                    self._fill(answer, refusal)
                    continue
                log = self.broker.logs.get(topic, item.index)
                self.appends.append(ProduceAppend(self, answer, log, topic, batch, header))
            self.response.responses.append(TopicProduceResponse(data.name, data.topic_id, answers))
        if not self.appends:
            self._finish()
            return
        self.missing = len(self.appends)
        timeout = self.request.timeout_ms / 1000
        self.deadline = asyncio.get_running_loop().time() + timeout
        self.broker.deadlines.add(self)
        for append in self.appends:
            append.log.append(append)

    def refuse_all(self, fault: BaseException) -> None:
        for data in self.request.topic_data:
            answers = [PartitionProduceResponse(item.index) for item in data.partition_data]
            for answer in answers:
                self._fill(answer, fault)
            self.response.responses.append(TopicProduceResponse(data.name, data.topic_id, answers))
        self._finish()

    def _fill(self, answer: PartitionProduceResponse, fault: BaseException) -> None:
        answer.error_code = code_for(fault)
        answer.error_message = str(fault)
        answer.base_offset = -1
        self.failed = True

    def answered(self, append: ProduceAppend, fault: BaseException | None) -> None:
        if fault is not None:
            self._fill(append.answer, fault)
        self.missing -= 1
        if self.missing == 0:
            self.broker.deadlines.remove(self)
            self._finish()

    def time_out(self) -> None:
        """The client stops waiting. What is in flight keeps its place until its fate is known."""
        late = StoreTimeout("the store did not answer in time")
        for append in self.appends:
            if not append.is_answered:
                append.given_up = True
                self._fill(append.answer, late)
        self._finish()

    def _finish(self) -> None:
        if self.request.acks != 0:
            self.call.reply(self.response)
        elif self.failed:
            # The only way to tell a producer that does not listen, as in Kafka.
            self.call.connection.abort()
        else:
            self.call.no_reply()


class ProduceAppend(Append):
    """One partition's batch of a Produce request."""

    __slots__ = ("answer", "append_time", "is_answered", "log", "owner")

    def __init__(
        self,
        owner: ProduceCall,
        answer: PartitionProduceResponse,
        log: PartitionLog,
        topic: Topic,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        request = owner.request
        replicas = 0
        if request.acks == ALL_REPLICAS:
            replicas = topic.config.min_insync_replicas - 1
        super().__init__(batch, header, replicas, request.timeout_ms)
        self.owner = owner
        self.answer = answer
        self.log = log
        self.append_time = topic.config.log_append_time
        self.is_answered = False

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self.is_answered = True
        if self.given_up:
            return
        answer = self.answer
        answer.base_offset = base_offset
        answer.log_start_offset = self.log.start
        if self.append_time:
            answer.log_append_time_ms = timestamp
        self.owner.answered(self, error)
