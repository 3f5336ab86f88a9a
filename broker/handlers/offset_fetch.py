"""OffsetFetch (key 9): committed offsets. KIP-709: several groups from v8. KIP-447: stable offsets.

An unknown group has no offsets, which is not an error. Member epochs (KIP-848, v9) are checked for
groups of that protocol only. Topic ids from v10.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, coordinator_code_for
from moldau.broker.group.offsets import NO_EPOCH, NO_OFFSET, CommittedOffsets
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    is_denied,
    is_hidden,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from moldau.broker.wire.schema import NO_UUID

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOP_ERROR = 2
FIRST_VERSION_WITH_MEMBER_EPOCH = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10


async def handle(broker: Broker, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    version = call.header.api_version
    if version >= FIRST_VERSION_WITH_GROUPS:
        fault = await _look_up(broker, request) if version >= FIRST_VERSION_WITH_TOPIC_IDS else 0
        groups = [
            await _group(broker, call, group, request.require_stable, fault)
            for group in request.groups
        ]
        return OffsetFetchResponse(groups=groups)
    topics = request.topics
    only = OffsetFetchRequestGroup(
        request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(t.name, NO_UUID, t.partition_indexes) for t in topics],
    )
    return _old_layout(await _group(broker, call, only, request.require_stable), only, version)


async def _look_up(broker: Broker, request: OffsetFetchRequest) -> int:
    """The topics of all groups, looked up together; the error if the store fails."""
    ids = {topic.topic_id for group in request.groups for topic in group.topics or ()}
    try:
        await broker.topics.find_each([("", topic_id) for topic_id in ids])
    except StoreFault as fault:
        return coordinator_code_for(fault)
    return 0


async def _group(
    broker: Broker,
    call: Call,
    group: OffsetFetchRequestGroup,
    require_stable: bool,
    unknown: int = 0,
) -> OffsetFetchResponseGroup:
    """`unknown`: the error if topics could not be looked up."""
    answer = OffsetFetchResponseGroup(group.group_id)
    if is_denied(broker, call, Operation.DESCRIBE, GROUP, group.group_id):
        answer.error_code = GROUP_DENIED
        return answer
    version = call.header.api_version
    groups = broker.group_coordinator.groups
    answer.error_code = groups.availability(group.group_id)
    if not answer.error_code and version >= FIRST_VERSION_WITH_MEMBER_EPOCH:
        answer.error_code = groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
    if answer.error_code:
        return answer
    group_offsets = groups.offsets.get(group.group_id) or CommittedOffsets()
    if group.topics is None:
        for name, offsets in group_offsets.topics().items():
            if is_hidden(broker, call, Operation.DESCRIBE, TOPIC, name):
                continue
            known = broker.topics.get(name)
            topic_id = NO_UUID if known is None else known.topic_id
            if version < FIRST_VERSION_WITH_TOPIC_IDS or known is not None:
                partitions = _partitions(group_offsets, name, offsets, require_stable)
                answer.topics.append(OffsetFetchResponseTopics(name, topic_id, partitions))
        return answer
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        answer.error_code = unknown
        if answer.error_code:
            return answer
    for topic in group.topics:
        name = topic.name
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            found = broker.topics.by_id(topic.topic_id)
            if found is None:
                answer.topics.append(_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            name = found.name
        if is_denied(broker, call, Operation.DESCRIBE, TOPIC, name):
            answer.topics.append(_failed(topic, TOPIC_DENIED))
            continue
        partitions = _partitions(group_offsets, name, topic.partition_indexes, require_stable)
        await _fill_uncommitted(broker, group.group_id, name, partitions)
        answer.topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
    return answer


async def _fill_uncommitted(
    broker: Broker, group_id: str, topic: str, partitions: list[OffsetFetchResponsePartitions]
) -> None:
    """A group that only Redis knows has committed its position there."""
    for answer in partitions:
        if answer.error_code or answer.committed_offset != NO_OFFSET:
            continue
        try:
            position = await broker.logs.group_position(group_id, topic, answer.partition_index)
        except StoreFault:
            answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            continue
        if position is not None:
            answer.committed_offset = position


def _partitions(
    group_offsets: CommittedOffsets, topic: str, partitions: Iterable[int], require_stable: bool
) -> list[OffsetFetchResponsePartitions]:
    answers = []
    for partition in partitions:
        committed = group_offsets.get(topic, partition)
        answer = OffsetFetchResponsePartitions(partition, NO_OFFSET, NO_EPOCH, "")
        if require_stable and group_offsets.is_pending(topic, partition):
            answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif committed is not None:
            answer.committed_offset = committed.offset
            answer.committed_leader_epoch = committed.leader_epoch
            answer.metadata = committed.metadata
        answers.append(answer)
    return answers


def _failed(topic: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(index, NO_OFFSET, NO_EPOCH, "", error)
        for index in topic.partition_indexes
    ]
    return OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions)


def _old_layout(
    answer: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """Below v8 there is one group, with its error at the top; in v1 only partitions have errors."""
    if answer.error_code and version < FIRST_VERSION_WITH_TOP_ERROR:
        answer.topics = [_failed(topic, answer.error_code) for topic in asked.topics or ()]
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    one.metadata,
                    one.error_code,
                )
                for one in topic.partitions
            ],
        )
        for topic in answer.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=answer.error_code)
