"""DescribeTopicPartitions (key 75, KIP-966): topics page by page, for admin clients."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.log.log import LEADER_EPOCH
from broker.log.topics import INTERNAL, Topic
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
    names = sorted({topic.name for topic in request.topics})
    if not request.topics:
        names = sorted(topic.name for topic in broker.topics.all())
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = request.cursor.partition_index
    left = min(request.response_partition_limit, MAX_PARTITIONS_PER_REPLY)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left <= 0:
            response.next_cursor = CursorInResponse(name, 0)
            break
        topic = await broker.topics.find(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
            )
            continue
        last = min(first + left, topic.partitions)
        response.topics.append(_describe(broker, topic, range(first, last)))
        left -= last - first
        first = 0
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
                leader_epoch=LEADER_EPOCH,
                replica_nodes=[leader],
                isr_nodes=[leader],
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id, topic.name in INTERNAL, described
    )
