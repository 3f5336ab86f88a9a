"""OffsetCommit (key 8): store a group's offsets; they are durable before the reply.

KIP-345: static members from v7. KIP-211: the broker's retention from v5 on. v9 knows
GROUP_ID_NOT_FOUND. KIP-848's topic ids: v10.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, coordinator_code_for
from moldau.broker.group.commits import check_metadata
from moldau.broker.group.offsets import CommittedOffset, Committer, TopicPartition, new_commit
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    is_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.broker.wire.schema import NO_UUID

FIRST_VERSION_WITH_TOPIC_IDS = 10


async def handle(broker: Broker, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    version = call.header.api_version
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        refused = GROUP_DENIED
    else:
        refused = _check(broker, request, version)
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    if not refused:
        try:
            await broker.topics.find_each(
                [(item.name, item.topic_id if by_id else NO_UUID) for item in request.topics]
            )
        except StoreFault as fault:
            refused = coordinator_code_for(fault)
    accepted: dict[TopicPartition, CommittedOffset] = {}
    answers = [_topic(broker, call, request, item, refused, accepted) for item in request.topics]
    if accepted:
        # The look-ups take time: refuse a member that was fenced meanwhile.
        error = _check(broker, request, version)
        if not error:
            broker.logs.offsets_committed(request.group_id, accepted)
            try:
                await broker.group_coordinator.offsets.commit(request.group_id, accepted)
            except StoreFault as fault:
                error = coordinator_code_for(fault)
        if error:
            _fail_accepted(answers, error)
    return OffsetCommitResponse(topics=answers)


def _check(broker: Broker, request: OffsetCommitRequest, version: int) -> ErrorCode:
    coordinator = broker.group_coordinator
    committer = Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        version,
        partitions=(  # looked at only where it matters
            (topic.topic_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else topic.name, index)
            for topic in request.topics
            for index in (one.partition_index for one in topic.partitions)
        ),
    )
    return coordinator.groups.check_commit(request.group_id, committer, coordinator.now_ms())


def _topic(
    broker: Broker,
    call: Call,
    request: OffsetCommitRequest,
    item: OffsetCommitRequestTopic,
    refused: ErrorCode,
    accepted: dict[TopicPartition, CommittedOffset],
) -> OffsetCommitResponseTopic:
    topic: Topic | None = None
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        name: str | None = item.name
        if call.header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic = broker.topics.by_id(item.topic_id)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            name = None if topic is None else topic.name
        else:
            topic = broker.topics.get(item.name)
        if name is not None and is_denied(broker, call, Operation.READ, TOPIC, name):
            refused = TOPIC_DENIED
    coordinator = broker.group_coordinator
    most = coordinator.groups.config.offset_metadata_max_size
    answers = []
    for partition in item.partitions:
        error = refused
        if error:
            pass
        elif topic is None:
            error = unknown
        elif not 0 <= partition.partition_index < topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not error:
            error = check_metadata(partition.committed_metadata, most)
        if not error and topic is not None:
            accepted[TopicPartition(topic.name, partition.partition_index)] = new_commit(
                partition.committed_offset,
                coordinator.now_ms(),
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata,
                retention_time_ms=request.retention_time_ms,
            )
        answers.append(OffsetCommitResponsePartition(partition.partition_index, error))
    return OffsetCommitResponseTopic(item.name, item.topic_id, answers)


def _fail_accepted(answers: list[OffsetCommitResponseTopic], error: ErrorCode) -> None:
    for topic in answers:
        for partition in topic.partitions:
            if not partition.error_code:
                partition.error_code = error
