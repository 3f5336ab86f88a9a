"""Fetch: API key 1, versions 4 to 18."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import (
    NO_UUID,
    F,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
)


class ReplicaState(Message):
    replica_id: Annotated[Int32, F(since=15)] = -1
    replica_epoch: Annotated[Int64, F(since=15)] = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, F(since=9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, F(since=12)] = -1
    log_start_offset: Annotated[Int64, F(since=5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, F(since=17, tag=0)] = NO_UUID
    high_watermark: Annotated[Int64, F(since=18, tag=1)] = (1 << 63) - 1


class FetchTopic(Message):
    topic: Annotated[String, F(until=12)] = ""
    topic_id: Annotated[Uuid, F(since=13)] = NO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[String, F(since=7, until=12)] = ""
    topic_id: Annotated[Uuid, F(since=13)] = NO_UUID
    partitions: Annotated[list[Int32], F(since=7)] = []


class FetchRequest(Message):
    cluster_id: Annotated[String | None, F(since=12, tag=0)] = None
    replica_id: Annotated[Int32, F(until=14)] = -1
    replica_state: Annotated[ReplicaState | None, F(since=15, tag=1)] = None
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = (1 << 31) - 1
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, F(since=7)] = 0
    session_epoch: Annotated[Int32, F(since=7)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], F(since=7)] = []
    rack_id: Annotated[String, F(since=11)] = ""


class EpochEndOffset(Message):
    epoch: Annotated[Int32, F(since=12)] = -1
    end_offset: Annotated[Int64, F(since=12)] = -1


class LeaderIdAndEpoch(Message):
    leader_id: Annotated[Int32, F(since=12)] = -1
    leader_epoch: Annotated[Int32, F(since=12)] = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, F(since=5)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, F(since=12, tag=0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, F(since=12, tag=1)] = None
    snapshot_id: Annotated[SnapshotId | None, F(since=12, tag=2)] = None
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Annotated[Int32, F(since=11)] = -1
    records: Records | None = None


class FetchableTopicResponse(Message):
    topic: Annotated[String, F(until=12)] = ""
    topic_id: Annotated[Uuid, F(since=13)] = NO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Annotated[Int32, F(since=16)] = 0
    host: Annotated[String, F(since=16)] = ""
    port: Annotated[Int32, F(since=16)] = 0
    rack: Annotated[String | None, F(since=16)] = None


class FetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F(since=7)] = 0
    session_id: Annotated[Int32, F(since=7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], F(since=16, tag=0)] = []
