"""DescribeTransactions (key 65, KIP-664): state, producer and partitions of transactional ids."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_denied,
    is_hidden,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(
    broker: Broker, request: DescribeTransactionsRequest, call: Call
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(broker, call, name) for name in request.transactional_ids]
    )


def _describe(broker: Broker, call: Call, transactional_id: str) -> TransactionState:
    if is_denied(broker, call, Operation.DESCRIBE, TRANSACTIONAL_ID, transactional_id):
        return TransactionState(
            error_code=TRANSACTIONAL_ID_DENIED, transactional_id=transactional_id
        )
    if not transactional_id:
        return TransactionState(error_code=ErrorCode.INVALID_REQUEST)
    transactions = broker.transactions.transactions
    error = transactions.availability(transactional_id)
    if error:
        return TransactionState(error_code=error, transactional_id=transactional_id)
    view = transactions.describe(transactional_id)
    if view is None:
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return TransactionState(error_code=error, transactional_id=transactional_id)
    partitions: dict[str, list[int]] = {}
    for place in view.partitions:
        partitions.setdefault(place.topic, []).append(place.partition)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=view.state,
        transaction_timeout_ms=view.timeout_ms,
        transaction_start_time_ms=view.started_ms,
        producer_id=view.producer_id,
        producer_epoch=view.producer_epoch,
        topics=[
            TopicData(topic, sorted(indexes))
            for topic, indexes in partitions.items()
            if not is_hidden(broker, call, Operation.DESCRIBE, TOPIC, topic)
        ],
    )
