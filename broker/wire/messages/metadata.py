"""Metadata: API key 3, versions 0 to 13."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, Bool, F, Int16, Int32, Message, String, Uuid


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    name: Annotated[String | None, F(nullable=10)] = ""


class MetadataRequest(Message):
    topics: Annotated[list[MetadataRequestTopic] | None, F(nullable=1)] = []
    allow_auto_topic_creation: Annotated[Bool, F(since=4)] = True
    include_cluster_authorized_operations: Annotated[Bool, F(since=8, until=10)] = False
    include_topic_authorized_operations: Annotated[Bool, F(since=8)] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, F(since=1)] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, F(since=7)] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], F(since=5)] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[String | None, F(nullable=12)] = ""
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    is_internal: Annotated[Bool, F(since=1)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, F(since=8)] = -2147483648


class MetadataResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=3)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, F(since=2)] = None
    controller_id: Annotated[Int32, F(since=1)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, F(since=8, until=10)] = -2147483648
    error_code: Annotated[Int16, F(since=13)] = 0
