"""DescribeProducers: API key 61, version 0."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Int64, Message, String


class TopicRequest(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = []


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Message):
    name: String = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
