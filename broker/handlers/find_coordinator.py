"""FindCoordinator (key 10): the coordinator of a group or a transactional id (KIP-98), both by the
same rule. KIP-699: several keys from v4 on.

A worker does not know which other workers are running and always names the owner. The router does
know, and answers COORDINATOR_NOT_AVAILABLE while the owner is down. With an authorizer it leaves
the answer to the workers: it has no ACLs.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import KafkaError
from moldau.broker.handlers.details.authorization import GROUP as GROUP_RESOURCE
from moldau.broker.handlers.details.authorization import TRANSACTIONAL_ID, denial, is_denied
from moldau.broker.placement import (
    FIRST_VERSION_WITH_MANY_KEYS,
    GROUP,
    TRANSACTION,
    find_coordinator,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)


async def handle(
    broker: Broker, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse:
    assumed_up = [True] * broker.settings.workers
    brokers = broker.endpoints(call.identity.listener)
    refused = _denied(broker, request, call) if broker.authorizer.is_enabled else {}
    return find_coordinator(request, call.header.api_version, brokers, assumed_up, refused)


def _denied(broker: Broker, request: FindCoordinatorRequest, call: Call) -> dict[str, KafkaError]:
    resource = {GROUP: GROUP_RESOURCE, TRANSACTION: TRANSACTIONAL_ID}.get(request.key_type)
    if resource is None:
        return {}
    is_old = call.header.api_version < FIRST_VERSION_WITH_MANY_KEYS
    return {
        key: denial(resource)
        for key in ([request.key] if is_old else request.coordinator_keys)
        if is_denied(broker, call, Operation.DESCRIBE, resource, key)
    }
