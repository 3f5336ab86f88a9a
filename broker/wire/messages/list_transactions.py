"""ListTransactions: API key 66, versions 0 to 2."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bytes, F, Int16, Int32, Int64, Message, String


class ListTransactionsRequest(Message):
    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, F(since=1)] = -1
    transactional_id_pattern: Annotated[String | None, F(since=2)] = None
    # Ours: the id of the store that the worker sees which asks.
    store_id: Annotated[Bytes, F(since=0, tag=100)] = b""


class TransactionState(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []
