"""Produce (key 0): append batches as they come, answer when they are in the store.

KIP-98: idempotence is the log's affair. KIP-467: a refused batch gets a message. KIP-516: topic
ids from v13. Versions 0-2 are advertised for old librdkafka, and refused.

This is the hot path: callbacks, no task per request, no record is decoded unless the topic asks
for it (compaction, recompression). A request for one partition, which is what most clients send,
is one object from arrival to answer (OneBatch); the others are gathered by ProduceCall.
"""

from __future__ import annotations

import time

from broker.errors import ErrorCode, KafkaError, StoreTimeout, code_for
from broker.handlers.context import Broker
from broker.log.admission import admit
from broker.log.flight import Append
from broker.log.partition import PartitionLog
from broker.log.topics import Topic
from broker.server.connection import Call
from broker.wire.apis import APIS
from broker.wire.batch import BatchHeader
from broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from broker.wire.schema import NO_UUID
from broker.wire.template import MARKS, Template

PRODUCE = APIS[0]
FIRST_VERSION = 3
FIRST_VERSION_WITH_LOG_START = 5
ALL_REPLICAS = -1
VALID_ACKS = (-1, 0, 1)
NO_APPEND_TIME = -1


def handle(broker: Broker, request: ProduceRequest, call: Call) -> None:
    topics = [_known_topic(broker, data) for data in request.topic_data]
    if not _start_one(broker, request, call, topics):
        _start_all(broker, request, call, topics)


def _known_topic(broker: Broker, data: TopicProduceData) -> Topic | None:
    if data.topic_id != NO_UUID:
        return broker.topics.by_id(data.topic_id)
    return broker.topics.get(data.name)


def _start_one(
    broker: Broker, request: ProduceRequest, call: Call, topics: list[Topic | None]
) -> bool:
    """The short way, for one batch that wants an answer; False when it is not for this request."""
    if len(topics) != 1 or request.acks not in (1, ALL_REPLICAS) or request.transactional_id:
        return False
    topic = topics[0]
    data = request.topic_data[0]
    if topic is None or len(data.partition_data) != 1:
        return False
    item = data.partition_data[0]
    version = call.header.api_version
    if not 0 <= item.index < topic.partitions or version < FIRST_VERSION:
        return False
    if _replicas(request, topic):
        return False
    try:
        batch, header = admit(item.records, topic.config, version, time.time_ns() // 1_000_000)
    except KafkaError as refusal:
        call.reply(_refusal(data, item, refusal))
        return True
    log = broker.logs.get(topic, item.index)
    append = OneBatch(broker, call, request, topic, log, batch, header)
    broker.deadlines.add(append)
    log.append(append)
    return True


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
    elif any(topic is None or _replicas(request, topic) for topic in topics):
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
        wanted = max((_replicas(produce.request, topic) for topic in topics if topic), default=0)
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


def _fill(answer: PartitionProduceResponse, fault: BaseException) -> None:
    answer.error_code = code_for(fault)
    answer.error_message = str(fault)
    answer.base_offset = -1


def _refusal(
    data: TopicProduceData, item: PartitionProduceData, fault: BaseException
) -> ProduceResponse:
    answer = PartitionProduceResponse(item.index)
    _fill(answer, fault)
    return ProduceResponse([TopicProduceResponse(data.name, data.topic_id, [answer])])


def _replicas(request: ProduceRequest, topic: Topic) -> int:
    """How many replicas of the store have to have it before the answer."""
    return topic.config.min_insync_replicas - 1 if request.acks == ALL_REPLICAS else 0


class OneBatch(Append):
    """A request for one partition: the append, and the call it answers."""

    __slots__ = ("append_time", "broker", "call", "deadline", "log", "request")

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: ProduceRequest,
        topic: Topic,
        log: PartitionLog,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        self.batch = batch
        self.header = header
        self.replicas = 0
        self.timeout_ms = request.timeout_ms
        self.base_offset = -1
        self.given_up = False
        self.broker = broker
        self.call = call
        self.request = request
        self.log = log
        self.append_time = topic.config.log_append_time
        self.deadline = broker.loop_time() + request.timeout_ms / 1000

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        if self.given_up:
            return
        self.broker.deadlines.remove(self)
        if error is not None:
            self._refuse(error)
            return
        header = self.call.header
        version = header.api_version
        template = self.log.replies.get(version)
        if template is None:
            template = self.log.replies[version] = self._template(version)
        append_time = timestamp if self.append_time else NO_APPEND_TIME
        if version >= FIRST_VERSION_WITH_LOG_START:
            frame = template.fill(header.correlation_id, base_offset, append_time, self.log.start)
        else:
            frame = template.fill(header.correlation_id, base_offset, append_time)
        self.call.reply_with([frame])

    def _template(self, version: int) -> Template:
        data = self.request.topic_data[0]
        answer = PartitionProduceResponse(data.partition_data[0].index)
        answer.base_offset, answer.log_append_time_ms, answer.log_start_offset = MARKS
        marked = ProduceResponse([TopicProduceResponse(data.name, data.topic_id, [answer])])
        fields = 3 if version >= FIRST_VERSION_WITH_LOG_START else 2
        return Template(PRODUCE, version, marked, fields)

    def time_out(self) -> None:
        """The client stops waiting. What is in flight keeps its place until its fate is known."""
        self.given_up = True
        self._refuse(StoreTimeout("the store did not answer in time"))

    def _refuse(self, fault: BaseException) -> None:
        data = self.request.topic_data[0]
        self.call.reply(_refusal(data, data.partition_data[0], fault))


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
                log = self.broker.logs.get(topic, item.index)
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
        _fill(answer, fault)
        self.failed = True

    def answered(self, append: OneOfMany, fault: BaseException | None) -> None:
        if fault is not None:
            self._refuse(append.answer, fault)
        self.missing -= 1
        if self.missing == 0:
            self.broker.deadlines.remove(self)
            self._finish()

    def time_out(self) -> None:
        """As OneBatch.time_out, for what has no answer yet."""
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
        log: PartitionLog,
        topic: Topic,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        replicas = _replicas(owner.request, topic)
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
