"""ListPartitionReassignments (key 46, KIP-455): there are never any.

A partition lives in the store, and any worker serves it: there are no replicas to move.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED_TEXT
        )
    return ListPartitionReassignmentsResponse(error_message=None)
