"""DescribeTopicPartitions (key 75, KIP-966): topics page by page, for admin clients."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    TOPIC_DENIED,
    check_allowed,
    is_hidden,
    operations,
)
from moldau.broker.handlers.details.lookup import NO_LEADER, find_topics, raise_fault
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import INTERNAL, Topic, check_name
from moldau.broker.wire.messages.describe_topic_partitions import (
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
        names = sorted(
            topic.name
            for topic in broker.topics.all()
            if not is_hidden(broker, call, Operation.DESCRIBE, TOPIC, topic.name)
        )
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    # At least one, or a client that follows the cursor would ask forever.
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS_PER_REPLY))
    response = DescribeTopicPartitionsResponse()
    checked = broker.logs.checked
    if not checked.is_complete:
        known = (broker.topics.get(name) for name in names)
        await checked.wait_for([topic for topic in known if topic is not None])
    found = await find_topics(broker, names)
    for name in names:
        if left <= 0:
            response.next_cursor = CursorInResponse(name, 0)
            break
        try:
            check_allowed(broker, call, Operation.DESCRIBE, TOPIC, name)
            check_name(name)
            topic = raise_fault(found[name])
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except KafkaError as refusal:
            unknown = DescribeTopicPartitionsResponseTopic(refusal.code, name)
            if refusal.code is not TOPIC_DENIED:
                unknown.topic_authorized_operations = operations(broker, call, TOPIC, name)
            response.topics.append(unknown)
            continue
        is_cursor = cursor is not None and cursor.topic_name == name
        first = min(cursor.partition_index, topic.partitions) if cursor and is_cursor else 0
        last = min(first + left, topic.partitions)
        response.topics.append(_describe(broker, call, topic, range(first, last)))
        left -= last - first
        if last < topic.partitions:
            response.next_cursor = CursorInResponse(name, last)
            break
    return response


def _describe(
    broker: Broker, call: Call, topic: Topic, partitions: range
) -> DescribeTopicPartitionsResponseTopic:
    described = []
    for partition in partitions:
        leader = broker.leader(topic, partition)
        one = DescribeTopicPartitionsResponsePartition(
            partition_index=partition,
            leader_id=leader,
            leader_epoch=broker.logs.leader_epochs.of_partition(topic, partition),
            replica_nodes=[leader],
            isr_nodes=[leader],
            eligible_leader_replicas=[],
            last_known_elr=[],
        )
        if not broker.logs.checked.has(topic, partition):  # it may be in a later epoch
            one.error_code, one.leader_id = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        described.append(one)
    return DescribeTopicPartitionsResponseTopic(
        0,
        topic.name,
        topic.topic_id,
        topic.name in INTERNAL,
        described,
        operations(broker, call, TOPIC, topic.name),
    )
