"""OffsetDelete (key 47, KIP-496): delete committed offsets of topics that a group does not read."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, coordinator_code_for
from moldau.broker.group.commits import check_offset_delete, check_topic_delete
from moldau.broker.group.offsets import TopicPartition
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    is_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(broker: Broker, request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
    if is_denied(broker, call, Operation.DELETE, GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=GROUP_DENIED)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    groups = broker.group_coordinator.groups
    refused = groups.availability(request.group_id)
    group = groups.by_id.get(request.group_id)
    if not refused:
        refused = ErrorCode.GROUP_ID_NOT_FOUND if group is None else check_offset_delete(group)
    if refused or group is None:
        return OffsetDeleteResponse(error_code=refused)
    subscribed = group.subscribed_topics()
    accepted: list[TopicPartition] = []
    answers = []
    for item in request.topics:
        topic = broker.topics.get(item.name)
        is_topic_denied = is_denied(broker, call, Operation.READ, TOPIC, item.name)
        partitions = []
        for partition in item.partitions:
            index = partition.partition_index
            error = check_topic_delete(subscribed, item.name)
            if topic is None or not 0 <= index < topic.partitions:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_topic_denied:
                error = TOPIC_DENIED
            if not error:
                accepted.append(TopicPartition(item.name, index))
            partitions.append(OffsetDeleteResponsePartition(index, error))
        answers.append(OffsetDeleteResponseTopic(item.name, partitions))
    try:
        await broker.group_coordinator.offsets.drop(request.group_id, accepted)
    except StoreFault as fault:
        return OffsetDeleteResponse(error_code=coordinator_code_for(fault))
    return OffsetDeleteResponse(topics=answers)
