"""OffsetFetch: API key 9, versions 1 to 10."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, Bool, F, Int16, Int32, Int64, Message, String, Uuid


class OffsetFetchRequestTopic(Message):
    name: Annotated[String, F(until=7)] = ""
    partition_indexes: Annotated[list[Int32], F(until=7)] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[String, F(since=8, until=9)] = ""
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    partition_indexes: Annotated[list[Int32], F(since=8)] = []


class OffsetFetchRequestGroup(Message):
    group_id: Annotated[String, F(since=8)] = ""
    member_id: Annotated[String | None, F(since=9)] = None
    member_epoch: Annotated[Int32, F(since=9)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, F(since=8)] = []


class OffsetFetchRequest(Message):
    group_id: Annotated[String, F(until=7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, F(until=7, nullable=2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], F(since=8)] = []
    require_stable: Annotated[Bool, F(since=7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Annotated[Int32, F(until=7)] = 0
    committed_offset: Annotated[Int64, F(until=7)] = 0
    committed_leader_epoch: Annotated[Int32, F(since=5, until=7)] = -1
    metadata: Annotated[String | None, F(until=7)] = ""
    error_code: Annotated[Int16, F(until=7)] = 0


class OffsetFetchResponseTopic(Message):
    name: Annotated[String, F(until=7)] = ""
    partitions: Annotated[list[OffsetFetchResponsePartition], F(until=7)] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Annotated[Int32, F(since=8)] = 0
    committed_offset: Annotated[Int64, F(since=8)] = 0
    committed_leader_epoch: Annotated[Int32, F(since=8)] = -1
    metadata: Annotated[String | None, F(since=8)] = ""
    error_code: Annotated[Int16, F(since=8)] = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[String, F(since=8, until=9)] = ""
    topic_id: Annotated[Uuid, F(since=10)] = NO_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], F(since=8)] = []


class OffsetFetchResponseGroup(Message):
    group_id: Annotated[String, F(since=8)] = ""
    topics: Annotated[list[OffsetFetchResponseTopics], F(since=8)] = []
    error_code: Annotated[Int16, F(since=8)] = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Annotated[Int32, F(since=3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], F(until=7)] = []
    error_code: Annotated[Int16, F(since=2, until=7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], F(since=8)] = []
