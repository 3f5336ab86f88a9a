"""OffsetForLeaderEpoch (key 23, KIP-320): there is one epoch, and it ends at the end of the log."""

from __future__ import annotations

from broker.errors import ErrorCode, MoldauError, code_for
from broker.handlers.context import Broker
from broker.handlers.lookup import current_log
from broker.log.log import LEADER_EPOCH
from broker.server.connection import Call
from broker.wire.messages.offset_for_leader_epoch import (
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
    for topic in request.topics:
        answers = [await _end(broker, topic.topic, item) for item in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end(broker: Broker, topic: str, item: OffsetForLeaderPartition) -> EpochEndOffset:
    if item.current_leader_epoch > LEADER_EPOCH:
        return EpochEndOffset(ErrorCode.UNKNOWN_LEADER_EPOCH, item.partition)
    try:
        log = await current_log(broker, topic, item.partition)
    except MoldauError as fault:
        return EpochEndOffset(code_for(fault), item.partition)
    if item.leader_epoch != LEADER_EPOCH:
        return EpochEndOffset(0, item.partition)  # no such epoch: undefined
    return EpochEndOffset(0, item.partition, LEADER_EPOCH, log.end)
