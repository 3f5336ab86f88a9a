"""TxnOffsetCommit (key 28, KIP-98, KIP-447)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


async def handle(
    broker: Broker, request: TxnOffsetCommitRequest, call: Call
) -> TxnOffsetCommitResponse:
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(p.partition_index, error)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
