"""FindCoordinator (key 10): who coordinates a group. KIP-699: several keys from v4 on.

Transactional ids have owners by the same rule, though transactions are not served yet: their
clients then hear a clear refusal from InitProducerId instead of looking for ever.
"""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from router.slots import owner_of

GROUP, TRANSACTION = 0, 1
FIRST_VERSION_WITH_KEYS = 4
NO_NODE = -1


async def handle(
    broker: Broker, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse:
    if call.header.api_version >= FIRST_VERSION_WITH_KEYS:
        found = [_find(broker, key, request.key_type) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _find(broker, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(broker: Broker, key: str, key_type: int) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        text = f"there are no coordinators of type {key_type}"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.INVALID_REQUEST, text)
    if key_type == GROUP and not key:
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.INVALID_GROUP_ID, "no group id")
    if len(broker.brokers) == 1:
        node = broker.brokers[0]
    else:
        owner = owner_of(key, broker.settings.workers)
        node = next(one for one in broker.brokers if one.node_id == owner)
    return Coordinator(key, node.node_id, node.host, node.port, 0, None)
