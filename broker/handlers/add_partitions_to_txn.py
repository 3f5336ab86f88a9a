"""AddPartitionsToTxn (key 24, KIP-98, KIP-890)."""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, call: Call
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(each.transactional_id, _results(each.topics))
            for each in request.transactions
        ],
        results_by_topic_v3_and_below=_results(request.v3_and_below_topics),
    )


def _results(topics: list[AddPartitionsToTxnTopic]) -> list[AddPartitionsToTxnTopicResult]:
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [AddPartitionsToTxnPartitionResult(index, error) for index in topic.partitions],
        )
        for topic in topics
    ]
