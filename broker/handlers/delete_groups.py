"""DeleteGroups (key 42, KIP-229): delete an empty group and its offsets."""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(broker: Broker, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    results = [
        DeletableGroupResult(group_id, await broker.group_coordinator.delete(group_id))
        for group_id in request.groups_names
    ]
    return DeleteGroupsResponse(results=results)
