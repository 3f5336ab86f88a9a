"""Produce: API key 0, versions 3 to 13."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import (
    NO_UUID,
    F,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
)

NOT_MIRRORED = -1


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Message):
    name: Annotated[String, F(until=12)] = ""
    topic_id: Annotated[Uuid, F(since=13)] = NO_UUID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Message):
    transactional_id: Annotated[String | None, F(since=3)] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []
    # Ours: the batches of the one partition are mirrored from another cluster and keep their
    # offsets; this is where the log has to end before them.
    mirrored_at: Annotated[Int64, F(since=9, tag=100)] = NOT_MIRRORED


class BatchIndexAndErrorMessage(Message):
    batch_index: Annotated[Int32, F(since=8)] = 0
    batch_index_error_message: Annotated[String | None, F(since=8)] = None


class LeaderIdAndEpoch(Message):
    leader_id: Annotated[Int32, F(since=10)] = -1
    leader_epoch: Annotated[Int32, F(since=10)] = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, F(since=2)] = -1
    log_start_offset: Annotated[Int64, F(since=5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], F(since=8)] = []
    error_message: Annotated[String | None, F(since=8)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, F(since=10, tag=0)] = None


class TopicProduceResponse(Message):
    name: Annotated[String, F(until=12)] = ""
    topic_id: Annotated[Uuid, F(since=13)] = NO_UUID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Message):
    node_id: Annotated[Int32, F(since=10)] = 0
    host: Annotated[String, F(since=10)] = ""
    port: Annotated[Int32, F(since=10)] = 0
    rack: Annotated[String | None, F(since=10)] = None


class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Annotated[Int32, F(since=1)] = 0
    node_endpoints: Annotated[list[NodeEndpoint], F(since=10, tag=0)] = []
