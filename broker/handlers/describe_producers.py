"""DescribeProducers (key 61, KIP-664)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)


async def handle(
    broker: Broker, request: DescribeProducersRequest, call: Call
) -> DescribeProducersResponse:
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                topic.name, [PartitionResponse(index, error) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )
