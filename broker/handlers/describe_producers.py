"""DescribeProducers (key 61, KIP-664): the producers of a partition, and their open transactions.

The coordinator epoch is the number of the producer's last transaction that ended here, or -1.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, MoldauError, code_for, message_for
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    TOPIC_DENIED,
    TOPIC_DENIED_TEXT,
    is_denied,
)
from moldau.broker.handlers.details.lookup import Found, current_log, find_topics
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.record import NO_NUMBER
from moldau.broker.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_COORDINATOR_EPOCH = -1


async def handle(
    broker: Broker, request: DescribeProducersRequest, call: Call
) -> DescribeProducersResponse:
    topics = []
    found = await find_topics(broker, (topic.name for topic in request.topics))
    for topic in request.topics:
        if is_denied(broker, call, Operation.READ, TOPIC, topic.name):
            refused = [
                PartitionResponse(index, TOPIC_DENIED, TOPIC_DENIED_TEXT)
                for index in topic.partition_indexes
            ]
            topics.append(TopicResponse(topic.name, refused))
            continue
        partitions = [
            await _describe(broker, found[topic.name], index) for index in topic.partition_indexes
        ]
        topics.append(TopicResponse(topic.name, partitions))
    return DescribeProducersResponse(topics=topics)


async def _describe(broker: Broker, topic: Found, partition: int) -> PartitionResponse:
    try:
        log = await current_log(broker, topic, partition)
    except MoldauError as fault:
        return PartitionResponse(partition, code_for(fault), message_for(fault))
    producers = [
        ProducerState(
            producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.last_timestamp,
            NO_COORDINATOR_EPOCH if producer.ended == NO_NUMBER else producer.ended,
            producer.open_from,
        )
        for producer_id, producer in log.producers().items()
    ]
    return PartitionResponse(partition, ErrorCode.NONE, None, producers)
