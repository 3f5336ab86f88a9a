"""DescribeTransactions (key 65, KIP-664)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


async def handle(
    broker: Broker, request: DescribeTransactionsRequest, call: Call
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(ErrorCode.COORDINATOR_NOT_AVAILABLE, each)
            for each in request.transactional_ids
        ]
    )
