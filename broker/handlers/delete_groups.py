"""DeleteGroups (key 42, KIP-229): delete an empty group and its offsets."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import GROUP, GROUP_DENIED, is_denied
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(broker: Broker, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    results = [
        DeletableGroupResult(group_id, await _delete(broker, call, group_id))
        for group_id in request.groups_names
    ]
    return DeleteGroupsResponse(results=results)


async def _delete(broker: Broker, call: Call, group_id: str) -> ErrorCode:
    if is_denied(broker, call, Operation.DELETE, GROUP, group_id):
        return GROUP_DENIED
    return await broker.group_coordinator.delete(group_id)
