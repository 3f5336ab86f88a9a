"""What a client is told while the worker that coordinates its group is away. Pure.

Every client retries COORDINATOR_NOT_AVAILABLE; the worker is back within two seconds, and finds
its groups as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.errors import ErrorCode
from broker.wire.frame import read_request_header, response_frame
from broker.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from broker.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from broker.wire.messages.heartbeat import HeartbeatResponse
from broker.wire.messages.init_producer_id import InitProducerIdResponse
from broker.wire.messages.join_group import JoinGroupResponse
from broker.wire.messages.leave_group import LeaveGroupResponse
from broker.wire.messages.list_groups import ListGroupsResponse
from broker.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from broker.wire.messages.offset_delete import OffsetDeleteResponse
from broker.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from broker.wire.messages.sync_group import SyncGroupResponse
from broker.wire.schema import Message

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
_NO_OFFSET = -1


def refusal(key: int, version: int, request: Any) -> Message | None:
    """The answer to a request whose worker is away; None for an API that has none of its own."""
    build = _BUILDERS.get(key)
    return None if build is None else build(request, version)


def refused_reply(frame: bytes) -> bytes | None:
    """The response frame to a whole request whose worker is away. Raises MalformedMessage."""
    header = read_request_header(frame)
    api, version = header.api, header.api_version
    assert api is not None
    request, _ = api.request_codec(version).decode(frame, header.body_at)
    message = refusal(api.key, version, request)
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
                    OffsetCommitResponsePartition(each.partition_index, AWAY)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: Any, version: int) -> Message:
    if version >= 8:
        groups = [OffsetFetchResponseGroup(each.group_id, [], AWAY) for each in request.groups]
        return OffsetFetchResponse(groups=groups)
    # Up to v1 there is no place for it but beside each partition.
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(index, _NO_OFFSET, error_code=AWAY)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(topics=topics if version < 2 else [], error_code=AWAY)


def _join_group(request: Any, version: int) -> Message:
    name = None if version >= 7 else ""
    return JoinGroupResponse(error_code=AWAY, protocol_name=name, member_id=request.member_id)


def _describe_groups(request: Any, version: int) -> Message:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(error_code=AWAY, group_id=each) for each in request.groups]
    )


def _delete_groups(request: Any, version: int) -> Message:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(each, AWAY) for each in request.groups_names]
    )


_BUILDERS: dict[int, Callable[[Any, int], Message]] = {
    8: _offset_commit,
    9: _offset_fetch,
    11: _join_group,
    12: lambda _, __: HeartbeatResponse(error_code=AWAY),
    13: lambda _, __: LeaveGroupResponse(error_code=AWAY),
    14: lambda _, __: SyncGroupResponse(error_code=AWAY),
    15: _describe_groups,
    16: lambda _, __: ListGroupsResponse(error_code=AWAY),
    22: lambda _, __: InitProducerIdResponse(error_code=AWAY, producer_epoch=-1),
    42: _delete_groups,
    47: lambda _, __: OffsetDeleteResponse(error_code=AWAY),
}
