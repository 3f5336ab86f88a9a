"""Produce requests with a single batch that want a response: the hot path.

Most producers repeat the same request, apart from its correlation id and its batch: same client,
same topic, same partition. The connection keeps a `ProduceRoute` for them. Requests that match it
are appended without decoding them and without any look-up. From arrival to response a request is
one object (`SingleAppend`).
"""

from __future__ import annotations

import asyncio
import struct
import time

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError, RecordsRefused, StoreTimeout, code_for, message_for
from moldau.broker.log.log import Log
from moldau.broker.log.writing.append import NO_REPLICAS, Append
from moldau.broker.log.writing.validation import LARGE, UnpacksLarge, admit, is_large, unpacked_room
from moldau.broker.server.call import Call, RequestRoute
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.batch import BatchHeader, Buffer
from moldau.broker.wire.frame import CORRELATION_ID_END, RequestHeader, response_frame
from moldau.broker.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.broker.wire.primitives import INT32, MalformedMessage, read_uvarint
from moldau.broker.wire.repeats import MARKS, THROTTLE_MARK, ResponseTemplate

PRODUCE = APIS[ApiKey.PRODUCE]
FIRST_VERSION_WITH_LOG_START = 5
NO_APPEND_TIME = -1
ALL_REPLICAS = -1
NO_TAGS = b"\0\0\0"  # after the batch in a flexible version: no structure has tagged fields


def replicas_wanted(acks: int, topic: Topic) -> int:
    """The number of the store's replicas that must have a batch before it is acknowledged."""
    return topic.config.min_insync_replicas - 1 if acks == ALL_REPLICAS else 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fill_refusal(answer: PartitionProduceResponse, fault: BaseException) -> None:
    answer.error_code = code_for(fault)
    answer.error_message = message_for(fault)
    answer.base_offset = -1
    if isinstance(fault, RecordsRefused):
        answer.record_errors = [
            BatchIndexAndErrorMessage(index, fault.reason) for index in fault.indexes
        ]


class ProduceRoute(RequestRoute):
    """Appends the batches of one producer to one partition."""

    __slots__ = ("_flexible", "broker", "log", "partition", "produce", "template", "topic")

    def __init__(
        self,
        broker: Broker,
        header: RequestHeader,
        request: ProduceRequest,
        topic: Topic,
        log: Log,
    ) -> None:
        named = request.topic_data[0]
        self.partition = named.partition_data[0].index
        # Without its batch, which would keep the whole frame in memory.
        data = TopicProduceData(
            named.name, named.topic_id, [PartitionProduceData(self.partition, b"")]
        )
        self.produce = ProduceRequest(None, request.acks, request.timeout_ms, [data])
        super().__init__(header, self.produce)
        self.broker = broker
        self.topic = topic
        self.log = log
        self.template: ResponseTemplate | None = None  # made when a request is repeated
        self._flexible = PRODUCE.is_flexible(header.api_version)

    # --- repeated requests ---

    def varying(self, canonical: bytes) -> tuple[int, int]:
        end = len(canonical) - (len(NO_TAGS) if self._flexible else 0)
        return end - (1 if self._flexible else INT32.size), end  # the length of the empty batch

    def serve(self, call: Call, frame: bytearray) -> bool:
        at = CORRELATION_ID_END + len(self.prefix)
        try:
            if self._flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                (size,) = INT32.unpack_from(frame, at)
                at += INT32.size
        except (IndexError, struct.error, MalformedMessage):
            return False
        end = at + size
        if (
            size < 0
            or end + len(self.suffix) != len(frame)
            or self.log.is_gone
            or replicas_wanted(self.produce.acks, self.topic)
        ):
            return False
        if self.template is None:
            self.template = self._response_template()
        self.start(call, memoryview(frame)[at:end])
        return True

    def _response_template(self) -> ResponseTemplate:
        version = self.header.api_version
        fields = 3 if version >= FIRST_VERSION_WITH_LOG_START else 2
        response = self.response(*MARKS)
        response.throttle_time_ms = THROTTLE_MARK
        parts = response_frame(PRODUCE, version, 0, response)
        return ResponseTemplate(b"".join(parts), fields)

    # --- appending ---

    def start(self, call: Call, records: Buffer | list[Buffer] | None) -> None:
        config = self.topic.config
        if records is not None and len(records) >= LARGE and is_large(records, config):
            self._hold_and_start(call, records)
            return
        try:
            admitted = admit(records, config, self.header.api_version, now_ms(), at_once=True)
        except KafkaError as refusal:
            self.refuse(call, refusal)
        except UnpacksLarge:
            self._hold_and_start(call, records)
        else:
            self._append(call, *admitted)

    def _hold_and_start(self, call: Call, records: Buffer | list[Buffer] | None) -> None:
        # Later requests of the connection must not overtake it.
        call.connection.hold()
        self.broker.logs.spawn(self._start_large(call, records))

    async def _start_large(self, call: Call, records: Buffer | list[Buffer] | None) -> None:
        try:
            config = self.topic.config
            async with self.broker.logs.unpacking.room(unpacked_room(records, config)):
                admitted = await asyncio.to_thread(
                    admit, records, config, self.header.api_version, now_ms()
                )
            self._append(call, *admitted)
        except KafkaError as refusal:
            self.refuse(call, refusal)
        except Exception:
            call.connection.abort()  # a bug: the client's connection is closed, and it retries
            raise
        finally:
            call.connection.resume()

    def _append(self, call: Call, batch: memoryview | bytearray, header: BatchHeader) -> None:
        append = SingleAppend(self, call, batch, header)
        self.broker.deadlines.add(append)
        self.log.append(append)

    def refuse(self, call: Call, fault: BaseException) -> None:
        response = self.response(-1, NO_APPEND_TIME, -1)
        fill_refusal(response.responses[0].partition_responses[0], fault)
        call.reply(response)

    def response(self, base_offset: int, append_time: int, log_start: int) -> ProduceResponse:
        answer = PartitionProduceResponse(self.partition)
        answer.base_offset = base_offset
        answer.log_append_time_ms = append_time
        answer.log_start_offset = log_start
        (data,) = self.produce.topic_data
        return ProduceResponse([TopicProduceResponse(data.name, data.topic_id, [answer])])


class SingleAppend(Append):
    """The append of a request for one partition, and its reply."""

    __slots__ = ("call", "deadline", "route")

    def __init__(
        self,
        route: ProduceRoute,
        call: Call,
        batch: memoryview | bytearray,
        header: BatchHeader,
    ) -> None:
        timeout_ms = route.produce.timeout_ms
        self.batch = batch
        self.header = header
        self.replicas = 0 if route.produce.acks == ALL_REPLICAS else NO_REPLICAS
        self.timeout_ms = timeout_ms
        self.base_offset = -1
        self.given_up = False
        self.route = route
        self.call = call
        self.deadline = route.broker.loop_time() + timeout_ms / 1000

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        if self.given_up:
            return
        route = self.route
        route.broker.deadlines.remove(self)
        if error is not None:
            route.refuse(self.call, error)
            return
        call, log_start = self.call, route.log.start
        append_time = timestamp if route.topic.config.log_append_time else NO_APPEND_TIME
        template = route.template
        if template is None:
            call.reply(route.response(base_offset, append_time, log_start))
            return
        header = call.header
        if header.api_version >= FIRST_VERSION_WITH_LOG_START:
            frame = template.fill(header.correlation_id, base_offset, append_time, log_start)
        else:
            frame = template.fill(header.correlation_id, base_offset, append_time)
        if call.is_metered:
            frame = template.throttled(frame, call.charge())
        call.reply_with([frame])

    def time_out(self) -> None:
        """The client stops waiting. An append in flight keeps its slot until its outcome is
        known."""
        self.given_up = True
        self.route.refuse(self.call, StoreTimeout("the store did not answer in time"))
