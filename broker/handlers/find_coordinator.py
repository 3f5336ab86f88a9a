"""FindCoordinator (key 10): who coordinates a group. KIP-699: several keys from v4 on.

Transactional ids have owners by the same rule, though transactions are not served yet: their
clients then hear a clear refusal from InitProducerId instead of looking for ever.

A worker knows nothing of the others' lives and names the owner, whether it is there or not; the
router, which does know, answers COORDINATOR_NOT_AVAILABLE [15] while the owner is away.
"""

from __future__ import annotations

from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from router.local import find_coordinator


async def handle(
    broker: Broker, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse:
    everybody = [True] * broker.settings.workers
    return find_coordinator(request, call.header.api_version, broker.brokers, everybody)
