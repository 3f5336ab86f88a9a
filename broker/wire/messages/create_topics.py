"""CreateTopics: API key 19, versions 2 to 7."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import NO_UUID, Bool, F, Int8, Int16, Int32, Message, String, Uuid


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    name: String = ""
    value: String | None = ""


class CreatableTopic(Message):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Message):
    name: Annotated[String, F(since=5)] = ""
    value: Annotated[String | None, F(since=5)] = ""
    read_only: Annotated[Bool, F(since=5)] = False
    config_source: Annotated[Int8, F(since=5)] = -1
    is_sensitive: Annotated[Bool, F(since=5)] = False


class CreatableTopicResult(Message):
    name: String = ""
    topic_id: Annotated[Uuid, F(since=7)] = NO_UUID
    error_code: Int16 = 0
    error_message: String | None = ""
    topic_config_error_code: Annotated[Int16, F(since=5, tag=0)] = 0
    num_partitions: Annotated[Int32, F(since=5)] = -1
    replication_factor: Annotated[Int16, F(since=5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, F(since=5)] = []


class CreateTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
