"""The router's responses while the worker that coordinates a group or transactional id is down.
Pure.

Every client retries COORDINATOR_NOT_AVAILABLE. The worker is back within about two seconds and
restores its groups and transactions as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import Api, ApiKey
from moldau.broker.wire.frame import read_request_header, response_frame
from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from moldau.broker.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from moldau.broker.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.broker.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from moldau.broker.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from moldau.broker.wire.messages.end_txn import EndTxnResponse
from moldau.broker.wire.messages.heartbeat import HeartbeatResponse
from moldau.broker.wire.messages.init_producer_id import InitProducerIdResponse
from moldau.broker.wire.messages.join_group import JoinGroupResponse
from moldau.broker.wire.messages.leave_group import LeaveGroupResponse
from moldau.broker.wire.messages.list_groups import ListGroupsResponse
from moldau.broker.wire.messages.list_transactions import ListTransactionsResponse
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.broker.wire.messages.offset_delete import OffsetDeleteResponse
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from moldau.broker.wire.messages.sync_group import SyncGroupResponse
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.broker.wire.schema import Message

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
_NO_OFFSET = -1
_NO_EPOCH = -1


def unavailable_response(api: Api, version: int, request: Any) -> Message | None:
    """Return the response to a request whose coordinator is down; None if the API has no
    coordinator."""
    build = _BUILDERS.get(api.key)
    return None if build is None else build(request, version)


def unavailable_reply(frame: bytes) -> bytes | None:
    """Return the response frame to a whole request frame whose coordinator is down; None if the API
    has no coordinator. Raises MalformedMessage."""
    header = read_request_header(frame)
    api, version = header.api, header.api_version
    assert api is not None
    request, _ = api.request_codec(version).decode(frame, header.body_at)
    message = unavailable_response(api, version, request)
    if message is None:
        return None
    return b"".join(response_frame(api, version, header.correlation_id, message))


def _offset_commit(request: Any, version: int) -> Message:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [
                    OffsetCommitResponsePartition(each.partition_index, NOT_AVAILABLE)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: Any, version: int) -> Message:
    if version >= 8:
        groups = [
            OffsetFetchResponseGroup(each.group_id, [], NOT_AVAILABLE) for each in request.groups
        ]
        return OffsetFetchResponse(groups=groups)
    # Up to v1 there is an error code only for each partition.
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(index, _NO_OFFSET, error_code=NOT_AVAILABLE)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics if version < 2 else [], error_code=NOT_AVAILABLE)


def _join_group(request: Any, version: int) -> Message:
    name = None if version >= 7 else ""
    return JoinGroupResponse(
        error_code=NOT_AVAILABLE, protocol_name=name, member_id=request.member_id
    )


def _describe_groups(request: Any, version: int) -> Message:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(error_code=NOT_AVAILABLE, group_id=each) for each in request.groups]
    )


def _delete_groups(request: Any, version: int) -> Message:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(each, NOT_AVAILABLE) for each in request.groups_names]
    )


def _add_partitions_to_txn(request: Any, version: int) -> Message:
    # From v4 on it is split: a top-level error code would also apply to the other parts.
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(each.transactional_id, _partitions_not_added(each.topics))
            for each in request.transactions
        ],
        results_by_topic_v3_and_below=_partitions_not_added(request.v3_and_below_topics),
    )


def _partitions_not_added(topics: list[Any]) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [AddPartitionsToTxnPartitionResult(index, NOT_AVAILABLE) for index in topic.partitions],
        )
        for topic in topics
    ]


def _txn_offset_commit(request: Any, version: int) -> Message:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(each.partition_index, NOT_AVAILABLE)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_transactions(request: Any, version: int) -> Message:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(NOT_AVAILABLE, transactional_id=each)
            for each in request.transactional_ids
        ]
    )


_BUILDERS: dict[ApiKey, Callable[[Any, int], Message]] = {
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: lambda _, __: HeartbeatResponse(error_code=NOT_AVAILABLE),
    ApiKey.LEAVE_GROUP: lambda _, __: LeaveGroupResponse(error_code=NOT_AVAILABLE),
    ApiKey.SYNC_GROUP: lambda _, __: SyncGroupResponse(error_code=NOT_AVAILABLE),
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda _, __: ConsumerGroupHeartbeatResponse(
        error_code=NOT_AVAILABLE
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda request, _: ConsumerGroupDescribeResponse(
        groups=[
            DescribedConsumerGroup(error_code=NOT_AVAILABLE, group_id=each)
            for each in request.group_ids
        ]
    ),
    ApiKey.LIST_GROUPS: lambda _, __: ListGroupsResponse(error_code=NOT_AVAILABLE),
    ApiKey.INIT_PRODUCER_ID: lambda _, __: InitProducerIdResponse(
        error_code=NOT_AVAILABLE, producer_epoch=_NO_EPOCH
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda _, __: AddOffsetsToTxnResponse(error_code=NOT_AVAILABLE),
    ApiKey.END_TXN: lambda _, __: EndTxnResponse(error_code=NOT_AVAILABLE),
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: lambda _, __: OffsetDeleteResponse(error_code=NOT_AVAILABLE),
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: lambda _, __: ListTransactionsResponse(error_code=NOT_AVAILABLE),
}
