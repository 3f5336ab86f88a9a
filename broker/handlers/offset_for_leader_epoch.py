"""OffsetForLeaderEpoch (key 23, KIP-320): where an epoch of a log ended.

A consumer that has read records which the store then lost is beyond that end, and steps back to it.
Unlike in Kafka, the offsets up to the start of the next epoch are a gap without records.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import MoldauError, read_code_for
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    TOPIC_DENIED,
    is_cluster_hidden,
    is_denied,
)
from moldau.broker.handlers.details.lookup import Found, check_epoch, current_log, find_topics
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    topics = []
    # Kafka's followers ask this too.
    by_topic = is_cluster_hidden(broker, call, Operation.CLUSTER_ACTION)
    found = await find_topics(broker, (topic.topic for topic in request.topics))
    for topic in request.topics:
        if by_topic and is_denied(broker, call, Operation.DESCRIBE, TOPIC, topic.topic):
            refused = [EpochEndOffset(TOPIC_DENIED, item.partition) for item in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic.topic, refused))
            continue
        answers = [await _end(broker, found[topic.topic], item) for item in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end(broker: Broker, topic: Found, item: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        log = await current_log(broker, topic, item.partition)
        check_epoch(log, item.current_leader_epoch)
    except MoldauError as fault:
        return EpochEndOffset(read_code_for(fault), item.partition)
    return EpochEndOffset(0, item.partition, *log.end_of_epoch(item.leader_epoch))
