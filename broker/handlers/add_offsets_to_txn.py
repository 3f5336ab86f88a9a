"""AddOffsetsToTxn (key 25, KIP-98)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)


async def handle(
    broker: Broker, request: AddOffsetsToTxnRequest, call: Call
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
