"""EndTxn (key 26, KIP-98)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.end_txn import (
    EndTxnRequest,
    EndTxnResponse,
)


async def handle(broker: Broker, request: EndTxnRequest, call: Call) -> EndTxnResponse:
    return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
