"""AddPartitionsToTxn: API key 24, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import (
    NO_UUID,
    Bool,
    Bytes,
    F,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
)


class AddPartitionsToTxnTopic(Message):
    name: String = ""
    partitions: list[Int32] = []
    # Ours, as is `transaction_number` below: a worker that asks knows which topic of that name.
    topic_id: Annotated[Uuid, F(since=5, tag=100)] = NO_UUID


class AddPartitionsToTxnTransaction(Message):
    transactional_id: Annotated[String, F(since=4)] = ""
    producer_id: Annotated[Int64, F(since=4)] = 0
    producer_epoch: Annotated[Int16, F(since=4)] = 0
    verify_only: Annotated[Bool, F(since=4)] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], F(since=4)] = []


class AddPartitionsToTxnRequest(Message):
    transactions: Annotated[list[AddPartitionsToTxnTransaction], F(since=4)] = []
    v3_and_below_transactional_id: Annotated[String, F(until=3)] = ""
    v3_and_below_producer_id: Annotated[Int64, F(until=3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, F(until=3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], F(until=3)] = []
    # Ours: the id of the store that the worker sees which asks.
    store_id: Annotated[Bytes, F(since=5, tag=100)] = b""


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0
    # Ours: workers tell each other which transaction of its id the partition is in. It is written
    # only if set, and other readers skip tags they do not know.
    transaction_number: Annotated[Int32, F(since=5, tag=100)] = 0


class AddPartitionsToTxnTopicResult(Message):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    transactional_id: Annotated[String, F(since=4)] = ""
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], F(since=4)] = []


class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F(since=4)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], F(since=4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], F(until=3)] = []
