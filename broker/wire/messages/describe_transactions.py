"""DescribeTransactions: API key 65, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Int64, Message, String


class DescribeTransactionsRequest(Message):
    transactional_ids: list[String] = []


class TopicData(Message):
    topic: String = ""
    partitions: list[Int32] = []


class TransactionState(Message):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
