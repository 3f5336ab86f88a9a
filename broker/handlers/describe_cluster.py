"""DescribeCluster (key 60, KIP-700): the brokers, for admin clients."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.handlers.details.authorization import NOT_REQUESTED, cluster_operations
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2
MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115


async def handle(
    broker: Broker, request: DescribeClusterRequest, call: Call
) -> DescribeClusterResponse:
    asked_for = request.endpoint_type
    if asked_for != BROKERS:
        # KIP-919: Kafka's controllers have endpoints of their own; there are none here.
        mismatched = asked_for == CONTROLLERS
        return DescribeClusterResponse(
            error_code=MISMATCHED_ENDPOINT_TYPE if mismatched else UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {asked_for} is not served: only brokers",
        )
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes[0],
        brokers=[
            DescribeClusterBroker(b.node_id, b.host, b.port)
            for b in broker.endpoints(call.identity.listener)
        ],
        cluster_authorized_operations=(
            cluster_operations(broker, call)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED
        ),
    )
