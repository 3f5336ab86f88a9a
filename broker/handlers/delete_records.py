"""DeleteRecords (key 21, KIP-107): raise the log start; Kafka Streams purges with it."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from moldau.broker.handlers.details.authorization import TOPIC, TOPIC_DENIED, is_denied
from moldau.broker.handlers.details.lookup import Found, current_log, find_topics
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


async def handle(
    broker: Broker, request: DeleteRecordsRequest, call: Call
) -> DeleteRecordsResponse:
    topics = []
    found = await find_topics(broker, (topic.name for topic in request.topics))
    for topic in request.topics:
        if is_denied(broker, call, Operation.DELETE, TOPIC, topic.name):
            refused = [
                DeleteRecordsPartitionResult(item.partition_index, -1, TOPIC_DENIED)
                for item in topic.partitions
            ]
            topics.append(DeleteRecordsTopicResult(topic.name, refused))
            continue
        answers = [await _delete(broker, found[topic.name], item) for item in topic.partitions]
        topics.append(DeleteRecordsTopicResult(topic.name, answers))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    broker: Broker, topic: Found, item: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    try:
        log = await current_log(broker, topic, item.partition_index)
        if isinstance(topic, Topic) and not topic.config.delete:
            text = "cleanup.policy does not include delete"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
        start = await log.delete_records(item.offset)
    except MoldauError as fault:
        return DeleteRecordsPartitionResult(item.partition_index, -1, code_for(fault))
    return DeleteRecordsPartitionResult(item.partition_index, start)
