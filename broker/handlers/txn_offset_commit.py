"""TxnOffsetCommit (key 28, KIP-98): offsets that become a group's when their transaction commits.

KIP-447: member and generation are checked from v3. KIP-890: TRANSACTION_ABORTABLE from v4; v5 adds
the group to the transaction itself; before v5 the client does so with AddOffsetsToTxn.
"""

from __future__ import annotations

import asyncio

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, coordinator_code_for
from moldau.broker.group.commits import check_metadata
from moldau.broker.group.offsets import CommittedOffset, Committer, TopicPartition, new_commit
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_denied,
)
from moldau.broker.handlers.details.lookup import Found, find_topics, raise_fault
from moldau.broker.placement import slot_of
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.txn.record import GROUP_OFFSETS, TxnPartition
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.broker.wire.schema import NO_UUID

FIRST_VERSION_THAT_ADDS_THE_GROUP = 5

_UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
# The first version that knows an error, and the error for older versions.
_SINCE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (2, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ErrorCode.TRANSACTION_ABORTABLE: (4, ErrorCode.INVALID_TXN_STATE),
}


async def handle(
    broker: Broker, request: TxnOffsetCommitRequest, call: Call
) -> TxnOffsetCommitResponse:
    version = call.header.api_version
    refused = _denied(broker, request, call) or _check(broker, request)
    accepted: dict[TopicPartition, CommittedOffset] = {}
    found = await find_topics(broker, () if refused else (item.name for item in request.topics))
    answers = [
        _topic(broker, call, item, found.get(item.name), refused, accepted)
        for item in request.topics
    ]
    error = await _commit(broker, request, version, accepted) if accepted else ErrorCode.NONE
    for topic in answers:
        for partition in topic.partitions:
            partition.error_code = _known_to(version, ErrorCode(partition.error_code or error))
    return TxnOffsetCommitResponse(topics=answers)


def _denied(broker: Broker, request: TxnOffsetCommitRequest, call: Call) -> ErrorCode:
    name = request.transactional_id
    if is_denied(broker, call, Operation.WRITE, TRANSACTIONAL_ID, name):
        return TRANSACTIONAL_ID_DENIED
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        return GROUP_DENIED
    return ErrorCode.NONE


def _check(broker: Broker, request: TxnOffsetCommitRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    coordinator = broker.group_coordinator
    committer = Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        partitions=(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ),
        is_transactional=True,
    )
    return coordinator.groups.check_commit(request.group_id, committer, coordinator.now_ms())


def _topic(
    broker: Broker,
    call: Call,
    item: TxnOffsetCommitRequestTopic,
    found: Found,
    refused: ErrorCode,
    accepted: dict[TopicPartition, CommittedOffset],
) -> TxnOffsetCommitResponseTopic:
    topic: Topic | None = None
    if not refused and is_denied(broker, call, Operation.READ, TOPIC, item.name):
        refused = TOPIC_DENIED
    if not refused:
        try:
            topic = raise_fault(found)
        except StoreFault:
            refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator = broker.group_coordinator
    most = coordinator.groups.config.offset_metadata_max_size
    answers = []
    for partition in item.partitions:
        error = refused
        if not error and (topic is None or not 0 <= partition.partition_index < topic.partitions):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not error:
            error = check_metadata(partition.committed_metadata, most)
        if not error:
            accepted[TopicPartition(item.name, partition.partition_index)] = new_commit(
                partition.committed_offset,
                coordinator.now_ms(),
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata,
            )
        answers.append(TxnOffsetCommitResponsePartition(partition.partition_index, error))
    return TxnOffsetCommitResponseTopic(item.name, answers)


async def _commit(
    broker: Broker,
    request: TxnOffsetCommitRequest,
    version: int,
    accepted: dict[TopicPartition, CommittedOffset],
) -> ErrorCode:
    transactional = broker.group_coordinator.transactional
    with transactional.in_progress(request.group_id, request.producer_id) as commit:
        error, number = await _join(broker, request, version)
        # That takes time: refuse a member that was fenced meanwhile.
        error = error or _check(broker, request)
        if error:
            return error
        try:
            await transactional.commit(commit, number, accepted)
        except StoreFault as fault:
            return coordinator_code_for(fault)
        except KafkaError as refusal:
            return refusal.code
    return ErrorCode.NONE


async def _join(
    broker: Broker, request: TxnOffsetCommitRequest, version: int
) -> tuple[ErrorCode, int]:
    """Add the group's slot to the transaction, or verify it. Returns the transaction's number."""
    answered: asyncio.Future[tuple[ErrorCode, int]] = asyncio.get_running_loop().create_future()

    def done(error: ErrorCode, number: int) -> None:
        if not answered.done():
            answered.set_result((error, number))

    broker.enlistment.enlist(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        TxnPartition(GROUP_OFFSETS, NO_UUID, slot_of(request.group_id)),
        verify_only=version < FIRST_VERSION_THAT_ADDS_THE_GROUP,
        done=done,
    )
    error, number = await answered
    if error in _UNAVAILABLE:
        # The transaction's coordinator, not the group's, which the client would look for again.
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    elif error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return error, number


def _known_to(version: int, error: ErrorCode) -> ErrorCode:
    since, older = _SINCE.get(error, (0, error))
    return error if version >= since else older
