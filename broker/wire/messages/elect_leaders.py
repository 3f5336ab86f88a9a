"""ElectLeaders: API key 43, versions 0 to 2."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import F, Int8, Int16, Int32, Message, String


class TopicPartitions(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Message):
    election_type: Annotated[Int8, F(since=1)] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReplicaElectionResult(Message):
    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F(since=1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []
