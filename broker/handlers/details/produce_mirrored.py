"""Produce of batches that are mirrored from another cluster, at their own offsets.

`moldau mirror` sends them with a tagged field that no other client sets: where the log has to end
before them (log/writing/mirrored.py). It needs CLUSTER_ACTION, as Kafka's own brokers do to copy
partitions, and the topic has to be marked as a mirror: no client can append to it then. The end of
the log, in the message of OFFSET_OUT_OF_RANGE, is for people; the mirror asks ListOffsets.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, StoreTimeout
from moldau.broker.handlers.details.authorization import CLUSTER_DENIED, is_cluster_denied
from moldau.broker.handlers.details.lookup import check_writable, nothing_to_write
from moldau.broker.handlers.details.produce_route import fill_refusal
from moldau.broker.log.log import Log
from moldau.broker.log.writing.mirrored import MirroredChunk
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


def append_mirrored(broker: Broker, request: ProduceRequest, call: Call) -> None:
    broker.logs.spawn(_append(broker, request, call))


async def _append(broker: Broker, request: ProduceRequest, call: Call) -> None:
    try:
        if is_cluster_denied(broker, call, Operation.CLUSTER_ACTION):
            raise KafkaError(CLUSTER_DENIED)
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "mirrored batches of one partition only")
        (data,) = request.topic_data
        (topic,) = await broker.topics.find_each([(data.name, data.topic_id)])
        if topic is None:
            raise nothing_to_write(data.name, data.topic_id)
        (item,) = data.partition_data
        check_writable(topic, item.index)
        _check_mirrored(topic)
        if not isinstance(item.records, memoryview):
            raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
        log = broker.logs.log_for(topic, item.index)
        chunk = MirroredAppend(broker, request, call, log, item.records)
    except MoldauError as fault:
        _reply(request, call, fault, -1, -1)
        return
    broker.deadlines.add(chunk)
    log.append(chunk)


def _check_mirrored(topic: Topic) -> None:
    source = topic.config.mirror_source
    if not source or source.endswith(MIRROR_ENDED) or topic.native:
        text = f"topic {topic.name} is not a mirror, or is one no more: its clients write to it"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


class MirroredAppend(MirroredChunk):
    """A chunk in a request, and its reply."""

    __slots__ = ("_broker", "_call", "_log", "_request", "deadline")

    def __init__(
        self, broker: Broker, request: ProduceRequest, call: Call, log: Log, records: memoryview
    ) -> None:
        super().__init__(records, request.mirrored_at)
        self._broker = broker
        self._call = call
        self._log = log
        self._request = request
        self.deadline = broker.loop_time() + request.timeout_ms / 1000

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        if not self.given_up:
            self._broker.deadlines.remove(self)
            _reply(self._request, self._call, error, base_offset, self._log.start)

    def time_out(self) -> None:
        self.given_up = True
        late = StoreTimeout("the store did not answer in time")
        _reply(self._request, self._call, late, -1, -1)


def _reply(
    request: ProduceRequest, call: Call, error: BaseException | None, base: int, start: int
) -> None:
    """The same answer for every partition of the request: it has one, or all of it is refused."""
    if request.acks == 0:  # no mirror's: a reply would be taken for that to another request
        if error is None:
            call.no_reply()
        else:
            call.connection.abort()
        return
    response = ProduceResponse()
    for data in request.topic_data:
        answers = []
        for item in data.partition_data:
            answer = PartitionProduceResponse(item.index)
            answer.base_offset, answer.log_start_offset = base, start
            if error is not None:
                fill_refusal(answer, error)
            answers.append(answer)
        response.responses.append(TopicProduceResponse(data.name, data.topic_id, answers))
    call.reply(response)
