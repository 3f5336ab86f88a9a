"""Produce, the short way: requests for one batch that want an answer.

Most producers send the same request again and again, but for its correlation id and its batch:
same client, same topic, same partition. What such a request says is kept with its connection
(`OnePlace`) and found again by its bytes; then neither header nor request is decoded, and nothing
is looked up. From arrival to answer it is one object (`OneBatch`).
"""

from __future__ import annotations

import struct
import time

from broker.errors import KafkaError, StoreTimeout, code_for
from broker.handlers.context import Broker
from broker.log.admission import admit
from broker.log.flight import Append
from broker.log.logs import AnyLog
from broker.log.topics import Topic
from broker.server.connection import Call
from broker.wire.apis import APIS
from broker.wire.batch import BatchHeader, Buffer
from broker.wire.frame import LENGTH, RequestHeader, request_frame
from broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from broker.wire.primitives import MalformedMessage, read_uvarint
from broker.wire.response_template import MARKS, Template

PRODUCE = APIS[0]
FIRST_VERSION_WITH_LOG_START = 5
NO_APPEND_TIME = -1
ALL_REPLICAS = -1
_TAGS = b"\0\0\0"  # after the batch in a flexible version: no tagged fields of any structure


def replicas_wanted(acks: int, topic: Topic) -> int:
    """How many replicas of the store have to have it before the answer."""
    return topic.config.min_insync_replicas - 1 if acks == ALL_REPLICAS else 0


def fill_refusal(answer: PartitionProduceResponse, fault: BaseException) -> None:
    answer.error_code = code_for(fault)
    answer.error_message = str(fault)
    answer.base_offset = -1


class OnePlace:
    """Where requests of one kind go, and all they say beside their batch (a `server.Repeat`)."""

    __slots__ = (
        "_flexible", "_tail", "broker", "data", "head", "header", "kind", "log", "request", "topic",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        header: RequestHeader,
        request: ProduceRequest,
        topic: Topic,
        log: AnyLog,
    ) -> None:
        named = request.topic_data[0]
        item = PartitionProduceData(named.partition_data[0].index, b"")
        self.data = TopicProduceData(named.name, named.topic_id, [item])
        self.request = ProduceRequest(None, request.acks, request.timeout_ms, [self.data])
        self.broker = broker
        self.header = header
        self.topic = topic
        self.log = log
        self._flexible = header.api_version >= PRODUCE.flexible_from
        self._tail = _TAGS if self._flexible else b""
        self.kind = b""
        self.head = b""

    def describes(self, frame: bytearray) -> bool:
        """Is this the request it was made of, written as we would write it?"""
        version = self.header.api_version
        canonical = request_frame(PRODUCE, version, 0, self.header.client_id, self.request)
        # Without its frame's length; up to that of the (empty) batch: four bytes with the tags.
        self.kind = canonical[4:8]
        self.head = canonical[12:-4]
        return frame.startswith(self.head, 8)

    def answer(self, frame: bytearray) -> None:
        """Not before it is in the store."""

    def header_of(self, frame: bytearray) -> RequestHeader:
        (correlation_id,) = LENGTH.unpack_from(frame, 4)
        header = self.header
        return RequestHeader(
            0, header.api_version, correlation_id, header.client_id, PRODUCE, header.body_at
        )

    def serve(self, call: Call, frame: bytearray) -> bool:
        """A request that begins like those before it; False when it goes on differently."""
        at = len(self.head) + 8
        try:
            if self._flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                (size,) = LENGTH.unpack_from(frame, at)
                at += 4
        except (IndexError, struct.error, MalformedMessage):
            return False
        end = at + size
        if (
            size < 0
            or end + len(self._tail) != len(frame)
            or not frame.endswith(self._tail)
            or self.log.is_gone
            or replicas_wanted(self.request.acks, self.topic)
        ):
            return False
        self.start(call, memoryview(frame)[at:end])
        return True

    def start(self, call: Call, records: Buffer | list[Buffer] | None) -> None:
        try:
            batch, header = admit(
                records,
                self.topic.config,
                self.header.api_version,
                time.time_ns() // 1_000_000,
            )
        except KafkaError as refusal:
            self.refuse(call, refusal)
            return
        append = OneBatch(self, call, batch, header)
        self.broker.deadlines.add(append)
        self.log.append(append)

    def refuse(self, call: Call, fault: BaseException) -> None:
        answer = PartitionProduceResponse(self.data.partition_data[0].index)
        fill_refusal(answer, fault)
        call.reply(
            ProduceResponse([TopicProduceResponse(self.data.name, self.data.topic_id, [answer])])
        )

    def template(self, version: int) -> Template:
        """The answer, once per version and partition."""
        answer = PartitionProduceResponse(self.data.partition_data[0].index)
        answer.base_offset, answer.log_append_time_ms, answer.log_start_offset = MARKS
        named = TopicProduceResponse(self.data.name, self.data.topic_id, [answer])
        fields = 3 if version >= FIRST_VERSION_WITH_LOG_START else 2
        made = Template(PRODUCE, version, ProduceResponse([named]), fields)
        self.log.replies[version] = made
        return made


class OneBatch(Append):
    """A request for one partition: the append, and the call it answers."""

    __slots__ = ("call", "deadline", "place")

    def __init__(
        self,
        place: OnePlace,
        call: Call,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        timeout_ms = place.request.timeout_ms
        self.batch = batch
        self.header = header
        self.replicas = 0
        self.timeout_ms = timeout_ms
        self.base_offset = -1
        self.given_up = False
        self.place = place
        self.call = call
        self.deadline = place.broker.loop_time() + timeout_ms / 1000

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        if self.given_up:
            return
        place, call = self.place, self.call
        place.broker.deadlines.remove(self)
        if error is not None:
            place.refuse(call, error)
            return
        header = call.header
        version = header.api_version
        log = place.log
        template = log.replies.get(version) or place.template(version)
        append_time = timestamp if place.topic.config.log_append_time else NO_APPEND_TIME
        if version >= FIRST_VERSION_WITH_LOG_START:
            frame = template.fill(header.correlation_id, base_offset, append_time, log.start)
        else:
            frame = template.fill(header.correlation_id, base_offset, append_time)
        call.reply_with([frame])

    def time_out(self) -> None:
        """The client stops waiting. What is in flight keeps its place until its fate is known."""
        self.given_up = True
        self.place.refuse(self.call, StoreTimeout("the store did not answer in time"))
