"""ListGroups (key 16): the groups of this worker. KIP-518: by state, v4. KIP-848: by type, v5."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.group.views import list_groups
from moldau.broker.handlers.details.authorization import GROUP, is_cluster_hidden, is_hidden
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


async def handle(broker: Broker, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    groups = broker.group_coordinator.groups
    listed = list_groups(groups.by_id.values(), request.states_filter, request.types_filter)
    if is_cluster_hidden(broker, call, Operation.DESCRIBE):
        listed = [
            group
            for group in listed
            if not is_hidden(broker, call, Operation.DESCRIBE, GROUP, group.group_id)
        ]
    return ListGroupsResponse(
        error_code=groups.loading(),
        groups=[
            ListedGroup(group.group_id, group.protocol_type, group.state, group.type)
            for group in listed
        ],
    )
