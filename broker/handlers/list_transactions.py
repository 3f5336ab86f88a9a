"""ListTransactions (key 66, KIP-664)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


async def handle(
    broker: Broker, request: ListTransactionsRequest, call: Call
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
