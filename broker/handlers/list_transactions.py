"""ListTransactions (key 66, KIP-664): the transactional ids of this worker.

By state and producer id. KIP-994: by duration from v1 on. KIP-1152: by a pattern of the id from v2
on, which is run in steps (txn/pattern.py): others are served in between.
"""

from __future__ import annotations

import asyncio

from broker.errors import ErrorCode
from broker.handlers.authorization import TRANSACTIONAL_ID, is_hidden
from broker.handlers.context import Broker
from broker.security.resources import Operation
from broker.server.call import Call
from broker.txn.pattern import InvalidPattern, Pattern
from broker.txn.record import TxnState
from broker.txn.views import TxnView
from broker.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

IDS_AT_ONCE = 200
# Of Kafka's states these do not occur here.
STATES = {*TxnState, "PrepareEpochFence", "Dead"}


async def handle(
    broker: Broker, request: ListTransactionsRequest, call: Call
) -> ListTransactionsResponse:
    coordinator = broker.transactions
    transactions = coordinator.transactions
    error = coordinator.loading()
    if call.is_from_worker and (
        not coordinator.knows(request.history) or coordinator.is_ending(request.producer_id_filters)
    ):
        # It looks for transactions that no one is going to end: see `coordinator/orphans.py`.
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
        try:
            listed = await _matching(request.transactional_id_pattern, listed)
        except InvalidPattern:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
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
    # One that never began has a start of -1, and so is listed, as in Kafka.
    return broker.transactions.now_ms() - view.started_ms > request.duration_filter


async def _matching(text: str, views: list[TxnView]) -> list[TxnView]:
    """Raises InvalidPattern."""
    pattern = Pattern(text)
    found = []
    for number, view in enumerate(views):
        if number % IDS_AT_ONCE == IDS_AT_ONCE - 1:
            await asyncio.sleep(0)
        if await _matches(pattern, view.transactional_id):
            found.append(view)
    return found


async def _matches(pattern: Pattern, transactional_id: str) -> bool:
    running = pattern.matching(transactional_id)
    while True:
        try:
            next(running)
        except StopIteration as end:
            is_match: bool = end.value
            return is_match
        await asyncio.sleep(0)
