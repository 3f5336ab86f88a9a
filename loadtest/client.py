"""A small blocking client on the project's own codec: what benchmarks set up and check with."""

from __future__ import annotations

import socket
from typing import Any

from broker.wire.apis import APIS, Api
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from broker.wire.schema import Message

PRODUCE, FETCH, LIST_OFFSETS, METADATA = APIS[0], APIS[1], APIS[2], APIS[3]
CREATE_TOPICS, DELETE_TOPICS = APIS[19], APIS[20]


class RequestFailed(RuntimeError):
    """The broker answered with an error code."""


class Client:
    """One connection; one request at a time."""

    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def call(self, api: Api, version: int, message: Message) -> Any:
        self._correlation += 1
        self._socket.sendall(request_frame(api, version, self._correlation, "bench", message))
        (size,) = LENGTH.unpack(self._receive(4))
        correlation, response = read_response(api, version, self._receive(size))
        if correlation != self._correlation:
            raise RequestFailed(f"reply {correlation} to request {self._correlation}")
        return response

    def _receive(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._socket.recv(min(size - len(chunks), 1 << 20))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            chunks += chunk
        return bytes(chunks)

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
