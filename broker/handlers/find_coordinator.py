"""FindCoordinator (key 10): the coordinator of a group or a transactional id (KIP-98), both by the
same rule. KIP-699: several keys from v4 on.

A worker does not know which other workers are running and always names the owner. The router does
know, and answers COORDINATOR_NOT_AVAILABLE while the owner is down.
"""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.placement import find_coordinator
from broker.server.connection import Call
from broker.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse


async def handle(
    broker: Broker, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse:
    assumed_up = [True] * broker.settings.workers
    brokers = broker.endpoints(call.identity.listener)
    return find_coordinator(request, call.header.api_version, brokers, assumed_up)
