"""DescribeCluster (key 60, KIP-700): the brokers, for admin clients."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS = 1
UNSUPPORTED_ENDPOINT_TYPE = 115


async def handle(
    broker: Broker, request: DescribeClusterRequest, call: Call
) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        # KIP-919: controllers have endpoints of their own in Kafka; here there are none.
        code = ErrorCode.INVALID_REQUEST
        if request.endpoint_type == 2:
            code = ErrorCode(UNSUPPORTED_ENDPOINT_TYPE)
        return DescribeClusterResponse(
            error_code=code,
            error_message=f"endpoint type {request.endpoint_type} is not served: only brokers",
            endpoint_type=request.endpoint_type,
        )
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.brokers[0].node_id,
        brokers=[DescribeClusterBroker(b.node_id, b.host, b.port) for b in broker.brokers],
    )
