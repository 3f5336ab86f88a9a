"""ConsumerGroupDescribe (key 69, KIP-848): epochs, members, their current and target assignments.

v1 tells which members use the classic protocol (KIP-1099).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.group.views import ConsumerMemberView
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    GROUP_DENIED_TEXT,
    TOPIC,
    is_denied,
    is_hidden,
    operations,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
HIDDEN_TEXT = "The described group uses topics that the client is not authorized to describe."


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, call: Call
) -> ConsumerGroupDescribeResponse:
    groups = [_describe(broker, call, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = operations(broker, call, GROUP, group.group_id)
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(broker: Broker, call: Call, group_id: str) -> DescribedGroup:
    if is_denied(broker, call, Operation.DESCRIBE, GROUP, group_id):
        return _failed(group_id, GROUP_DENIED, GROUP_DENIED_TEXT)
    if not group_id:  # simple consumers may commit under it, but no member joins it
        return _failed(group_id, ErrorCode.INVALID_GROUP_ID, None)
    groups = broker.group_coordinator.groups
    error = groups.availability(group_id)
    if error:
        return _failed(group_id, error, None)
    view = groups.describe_consumers(group_id)
    if view is None:
        known = group_id in groups.by_id
        text = "is not a consumer group" if known else "not found"
        return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {text}.")
    described = DescribedGroup(
        group_id=group_id,
        group_state=view.state,
        group_epoch=view.group_epoch,
        assignment_epoch=view.target_epoch,
        assignor_name=view.assignor,
        members=[_member(broker, member) for member in view.members],
    )
    if broker.authorizer.is_enabled and any(
        is_hidden(broker, call, Operation.DESCRIBE, TOPIC, one.topic_name)
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for one in assignment.topic_partitions
    ):
        return _failed(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TEXT)
    return described


def _failed(group_id: str, error: ErrorCode, text: str | None) -> DescribedGroup:
    return DescribedGroup(error_code=error, error_message=text, group_id=group_id)


def _member(broker: Broker, member: ConsumerMemberView) -> Member:
    return Member(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.epoch,
        member.client_id,
        f"/{member.client_host}",  # as Java writes an address without a name
        list(member.names),
        member.pattern,
        _assignment(broker, member.assigned),
        _assignment(broker, member.target),
        CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(broker: Broker, places: Mapping[bytes, Sequence[int]]) -> Assignment:
    """Deleted topics are left out, since they have no name."""
    topics = []
    for topic_id, partitions in places.items():
        topic = broker.topics.by_id(topic_id)
        if topic is not None:
            topics.append(TopicPartitions(topic_id, topic.name, list(partitions)))
    return Assignment(topics)
