"""ListTransactions (key 66, KIP-664): the transactional ids of this worker.

They are filtered by state and producer id. KIP-994: by duration from v1 on. KIP-1152: by a pattern
of the id from v2 on, which is matched in a thread so that other requests are served meanwhile.
"""

from __future__ import annotations

import asyncio

from moldau.broker import expressions
from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import TRANSACTIONAL_ID, is_hidden
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.record import TxnState, TxnView
from moldau.broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

# Kafka's states that do not occur here.
STATES = {*TxnState, "PrepareEpochFence", "Dead"}


async def handle(
    broker: Broker, request: ListTransactionsRequest, call: Call
) -> ListTransactionsResponse:
    coordinator = broker.transactions
    transactions = coordinator.transactions
    error = coordinator.loading()
    if call.is_from_worker and (
        not coordinator.knows(request.store_id)
        or coordinator.is_ending(request.producer_id_filters)
    ):
        # It looks for hanging transactions, and must not take this one for one of them.
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error:
        return ListTransactionsResponse(error_code=error)
    unknown = [state for state in request.state_filters if state not in STATES]
    listed = [
        view
        for view in transactions.list()
        if _is_wanted(broker, request, view)
        and not is_hidden(broker, call, Operation.DESCRIBE, TRANSACTIONAL_ID, view.transactional_id)
    ]
    if request.transactional_id_pattern:
        pattern = request.transactional_id_pattern
        if not expressions.is_valid(pattern):
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        listed = await asyncio.to_thread(_matching, pattern, listed)
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(view.transactional_id, view.producer_id, view.state) for view in listed
        ],
    )


def _is_wanted(broker: Broker, request: ListTransactionsRequest, view: TxnView) -> bool:
    if request.state_filters and view.state not in request.state_filters:
        return False
    if request.producer_id_filters and view.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter < 0:
        return True
    # A transaction that never began has a start of -1, and is listed, as in Kafka.
    return broker.transactions.now_ms() - view.started_ms > request.duration_filter


def _matching(pattern: str, views: list[TxnView]) -> list[TxnView]:
    """Run in a thread: a transactional id may have thousands of characters."""
    return [view for view in views if expressions.matches_wholly(pattern, view.transactional_id)]
