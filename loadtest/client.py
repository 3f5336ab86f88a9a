"""What benchmarks set up and check with, on top of the operator's client (ops/client.py)."""

from __future__ import annotations

from broker.wire.apis import APIS
from broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ops.client import TIMEOUT_S, Connection

PRODUCE, FETCH, LIST_OFFSETS, METADATA = APIS[0], APIS[1], APIS[2], APIS[3]
CREATE_TOPICS, DELETE_TOPICS = APIS[19], APIS[20]


class RequestFailed(RuntimeError):
    """The broker answered with an error code."""


class Client(Connection):
    """One connection; one request at a time."""

    def __init__(self, host: str, port: int, timeout: float = TIMEOUT_S) -> None:
        super().__init__(host, port, timeout, client_id="bench")

    def metadata(self, topic: str | None = None) -> MetadataResponse:
        topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
        answer: MetadataResponse = self.call(METADATA, 9, MetadataRequest(topics))
        return answer

    def create_topic(self, name: str, partitions: int) -> None:
        topic = CreatableTopic(name, partitions, 1)
        answer = self.call(CREATE_TOPICS, 5, CreateTopicsRequest([topic]))
        if answer.topics[0].error_code:
            raise RequestFailed(f"{name}: {answer.topics[0].error_message}")

    def delete_topic(self, name: str) -> None:
        answer = self.call(
            DELETE_TOPICS, 5, DeleteTopicsRequest([DeleteTopicState(name)], [name], 30000)
        )
        if answer.responses[0].error_code:
            raise RequestFailed(f"{name}: error {answer.responses[0].error_code}")

    def end_offset(self, topic: str, partition: int) -> int:
        request = ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, -1)])]
        )
        answer = self.call(LIST_OFFSETS, 5, request).topics[0].partitions[0]
        if answer.error_code:
            raise RequestFailed(f"{topic}-{partition}: error {answer.error_code}")
        end: int = answer.offset
        return end
