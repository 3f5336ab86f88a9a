"""DescribeQuorum: API key 55, versions 0 to 2."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, F, Int16, Int32, Int64, Message, String, UInt16, Uuid


class PartitionData(Message):
    partition_index: Int32 = 0


class TopicData(Message):
    topic_name: String = ""
    partitions: list[PartitionData] = []


class DescribeQuorumRequest(Message):
    topics: list[TopicData] = []


class ReplicaState(Message):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, F(since=2)] = NO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, F(since=1)] = -1
    last_caught_up_timestamp: Annotated[Int64, F(since=1)] = -1


class QuorumPartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, F(since=2)] = ""
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class QuorumTopic(Message):
    topic_name: String = ""
    partitions: list[QuorumPartition] = []


class Listener(Message):
    name: Annotated[String, F(since=2)] = ""
    host: Annotated[String, F(since=2)] = ""
    port: Annotated[UInt16, F(since=2)] = 0


class Node(Message):
    node_id: Annotated[Int32, F(since=2)] = 0
    listeners: Annotated[list[Listener], F(since=2)] = []


class DescribeQuorumResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[String | None, F(since=2)] = ""
    topics: list[QuorumTopic] = []
    nodes: Annotated[list[Node], F(since=2)] = []
