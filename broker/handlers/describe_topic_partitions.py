"""DescribeTopicPartitions (key 75, KIP-966): topics page by page, for admin clients."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError
from broker.handlers.authorized_operations import ON_TOPIC
from broker.handlers.context import Broker
from broker.log.topics import INTERNAL, Topic, check_name
from broker.server.connection import Call
from broker.wire.messages.describe_topic_partitions import (
    CursorInResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

MAX_PARTITIONS_PER_REPLY = 2000


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    names = sorted({topic.name for topic in request.topics})
    is_listed = not names or cursor is None or cursor.topic_name in names
    if cursor is not None and (cursor.partition_index < 0 or not is_listed):
        refused = [
            DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, name) for name in names
        ]
        return DescribeTopicPartitionsResponse(topics=refused)
    if not request.topics:
        names = sorted(topic.name for topic in broker.topics.all())
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    # At least one, or a client that follows the cursor would ask for ever.
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS_PER_REPLY))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left <= 0:
            response.next_cursor = CursorInResponse(name, 0)
            break
        try:
            check_name(name)
            topic = await broker.topics.find(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except KafkaError as refusal:
            unknown = DescribeTopicPartitionsResponseTopic(refusal.code, name)
            unknown.topic_authorized_operations = ON_TOPIC
            response.topics.append(unknown)
            continue
        is_cursor = cursor is not None and cursor.topic_name == name
        first = min(cursor.partition_index, topic.partitions) if cursor and is_cursor else 0
        last = min(first + left, topic.partitions)
        response.topics.append(_describe(broker, topic, range(first, last)))
        left -= last - first
        if last < topic.partitions:
            response.next_cursor = CursorInResponse(name, last)
            break
    return response


def _describe(
    broker: Broker, topic: Topic, partitions: range
) -> DescribeTopicPartitionsResponseTopic:
    described = []
    for partition in partitions:
        leader = broker.leader(topic, partition)
        described.append(
            DescribeTopicPartitionsResponsePartition(
                partition_index=partition,
                leader_id=leader,
                leader_epoch=broker.logs.leader_epochs.of_partition(topic, partition),
                replica_nodes=[leader],
                isr_nodes=[leader],
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id, topic.name in INTERNAL, described, ON_TOPIC
    )
