"""DescribeGroups (key 15): state, members and assignments. KIP-1043: GROUP_ID_NOT_FOUND from v6."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.group.states import GroupState
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    GROUP_DENIED_TEXT,
    is_denied,
    operations,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

FIRST_VERSION_WITH_NOT_FOUND = 6


async def handle(
    broker: Broker, request: DescribeGroupsRequest, call: Call
) -> DescribeGroupsResponse:
    groups = [_describe(broker, call, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = operations(broker, call, GROUP, group.group_id)
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, call: Call, group_id: str) -> DescribedGroup:
    if is_denied(broker, call, Operation.DESCRIBE, GROUP, group_id):
        return DescribedGroup(
            error_code=GROUP_DENIED, group_id=group_id, error_message=GROUP_DENIED_TEXT
        )
    version = call.header.api_version
    groups = broker.group_coordinator.groups
    error = groups.availability(group_id)
    if error:
        return DescribedGroup(error_code=error, group_id=group_id)
    view = groups.describe(group_id)
    if view.state is GroupState.DEAD and version >= FIRST_VERSION_WITH_NOT_FOUND:
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} "
            + ("is not a classic group." if group_id in groups.by_id else "not found."),
            group_id=group_id,
            group_state=view.state,
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=[
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                f"/{member.client_host}",  # as Java writes an address without a name
                member.metadata,
                member.assignment,
            )
            for member in view.members
        ],
    )
