"""Produce (key 0): append batches as they come, answer when they are in the store.

KIP-98: idempotence is the log's affair. KIP-467: a refused batch gets a message. KIP-516: topic
ids from v13. Versions 0-2 are advertised for old librdkafka, and refused.

This is the hot path: callbacks, no task per request, no record is decoded unless the topic asks
for it (compaction, recompression). A request for one partition, which is what most clients send,
goes through produce_route.py; the others are gathered by ProduceCall.
"""

from __future__ import annotations

import time

from broker.errors import ErrorCode, KafkaError, StoreTimeout
from broker.handlers.context import Broker
from broker.handlers.produce_route import ALL_REPLICAS, ProduceRoute, fill_refusal, replicas_wanted
from broker.log.admission import admit
from broker.log.flight import Append
from broker.log.logs import AnyLog
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
VALID_ACKS = (-1, 0, 1)


def handle(broker: Broker, request: ProduceRequest, call: Call) -> ProduceRoute | None:
    topics = [_known_topic(broker, data) for data in request.topic_data]
    route = _single_route(broker, request, call, topics)
    if route is None:
        _start_all(broker, request, call, topics)
    else:
        route.start(call, request.topic_data[0].partition_data[0].records)
    return route


def _known_topic(broker: Broker, data: TopicProduceData) -> Topic | None:
    if data.topic_id != NO_UUID:
        return broker.topics.by_id(data.topic_id)
    return broker.topics.get(data.name)


def _single_route(
    broker: Broker, request: ProduceRequest, call: Call, topics: list[Topic | None]
) -> ProduceRoute | None:
    """The route of a request with a single batch that wants a response, else None."""
    if len(topics) != 1 or request.acks not in (1, ALL_REPLICAS):
        return None
    topic = topics[0]
    data = request.topic_data[0]
    if topic is None or request.transactional_id is not None or len(data.partition_data) != 1:
        return None
    item = data.partition_data[0]
    if not 0 <= item.index < topic.partitions or call.header.api_version < FIRST_VERSION:
        return None
    if replicas_wanted(request.acks, topic):
        return None
    log = broker.logs.log_for(topic, item.index)
    return ProduceRoute(broker, call.header, request, topic, log)


def _start_all(
    broker: Broker, request: ProduceRequest, call: Call, topics: list[Topic | None]
) -> None:
    produce = ProduceCall(broker, call, request)
    if call.header.api_version < FIRST_VERSION:
        produce.refuse_all(KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    elif request.acks not in VALID_ACKS:
        produce.refuse_all(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}"))
    elif request.transactional_id is not None:
        text = "transactions are not served by this broker"
        produce.refuse_all(KafkaError(ErrorCode.INVALID_TXN_STATE, text))
    elif any(topic is None or replicas_wanted(request.acks, topic) for topic in topics):
        # What comes after it must not be appended before it.
        call.connection.hold()
        broker.logs.spawn(_ask_and_start(broker, produce))
    else:
        produce.start(topics)


async def _ask_and_start(broker: Broker, produce: ProduceCall) -> None:
    """Rare: the store has to be asked first, about topics or about its replicas."""
    topics: list[Topic | None] = []
    try:
        for data in produce.request.topic_data:
            # Perhaps created by another worker a moment ago.
            if data.topic_id != NO_UUID:
                topics.append(await broker.topics.find_id(data.topic_id))
            else:
                topics.append(await broker.topics.find(data.name))
        wanted = max(
            (replicas_wanted(produce.request.acks, topic) for topic in topics if topic), default=0
        )
        if wanted and (there := await broker.store.replicas()) < wanted:
            text = f"min.insync.replicas wants {wanted} replicas of the store, there are {there}"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    except Exception as fault:
        produce.refuse_all(fault)
    else:
        produce.start(topics)
    finally:
        produce.call.connection.go_on()


def _unknown(data: TopicProduceData) -> KafkaError:
    if data.topic_id != NO_UUID:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class ProduceCall:
    """Any Produce request: replies when every partition has its answer."""

    __slots__ = (
        "appends", "broker", "call", "deadline", "failed", "missing", "request", "response",
    )  # fmt: skip

    def __init__(self, broker: Broker, call: Call, request: ProduceRequest) -> None:
        self.broker = broker
        self.call = call
        self.request = request
        self.response = ProduceResponse()
        self.appends: list[OneOfMany] = []
        self.missing = 0
        self.failed = False
        self.deadline = broker.loop_time() + request.timeout_ms / 1000

    def start(self, topics: list[Topic | None]) -> None:
        now_ms = time.time_ns() // 1_000_000
        version = self.call.header.api_version
        for topic, data in zip(topics, self.request.topic_data, strict=True):
            answers = []
            for item in data.partition_data:
                answer = PartitionProduceResponse(item.index)
                answers.append(answer)
                if topic is None or not 0 <= item.index < topic.partitions:
                    self._refuse(answer, _unknown(data))
                    continue
                try:
                    batch, header = admit(item.records, topic.config, version, now_ms)
                except KafkaError as refusal:
                    self._refuse(answer, refusal)
                    continue
                log = self.broker.logs.log_for(topic, item.index)
                self.appends.append(OneOfMany(self, answer, log, topic, batch, header))
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

    def answered(self, append: OneOfMany, fault: BaseException | None) -> None:
        if fault is not None:
            self._refuse(append.answer, fault)
        self.missing -= 1
        if self.missing == 0:
            self.broker.deadlines.remove(self)
            self._finish()

    def time_out(self) -> None:
        """As SingleAppend.time_out, for what has no answer yet."""
        late = StoreTimeout("the store did not answer in time")
        for append in self.appends:
            if not append.is_answered:
                append.given_up = True
                self._refuse(append.answer, late)
        self._finish()

    def _finish(self) -> None:
        self.appends.clear()  # they know us: a cycle would keep the batches until it is collected
        if self.request.acks != 0:
            self.call.reply(self.response)
        elif self.failed:
            # The only way to tell a producer that does not listen, as in Kafka.
            self.call.connection.abort()
        else:
            self.call.no_reply()


class OneOfMany(Append):
    """One partition's batch of a request with several, or of one that wants no answer."""

    __slots__ = ("answer", "append_time", "is_answered", "log", "owner")

    def __init__(
        self,
        owner: ProduceCall,
        answer: PartitionProduceResponse,
        log: AnyLog,
        topic: Topic,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        replicas = replicas_wanted(owner.request.acks, topic)
        super().__init__(batch, header, replicas, owner.request.timeout_ms)
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
