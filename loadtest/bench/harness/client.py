"""What benchmarks set up and check with, on top of the operator's client (ops/client)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from broker.errors import ErrorCode
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ops.client import TIMEOUT_S, Address, Connection

PRODUCE, FETCH, LIST_OFFSETS, METADATA = (
    APIS[ApiKey.PRODUCE],
    APIS[ApiKey.FETCH],
    APIS[ApiKey.LIST_OFFSETS],
    APIS[ApiKey.METADATA],
)
CREATE_TOPICS, DELETE_TOPICS = APIS[ApiKey.CREATE_TOPICS], APIS[ApiKey.DELETE_TOPICS]


SETTLING_S = 30.0
# What a broker says of a partition that it will know in a moment: in Kafka a topic that was created
# reaches the leaders of its partitions later than the answer reaches the client.
_NOT_YET = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class RequestFailed(RuntimeError):
    """The broker answered with an error code."""


class NotYet(RequestFailed):
    """The broker does not know that yet, and may in a moment."""


class Client(Connection):
    """One connection; one request at a time."""

    def __init__(self, host: str, port: int, timeout: float = TIMEOUT_S) -> None:
        super().__init__((host, port), timeout=timeout, client_id="bench")

    def metadata(self, topic: str | None = None) -> MetadataResponse:
        topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.call(request, 9)
        return answer

    def create_topic(self, name: str, partitions: int) -> None:
        """And wait until the leaders of its partitions serve it."""
        topic = CreatableTopic(name, partitions, 1)
        answer = self.call(CreateTopicsRequest([topic]), 5)
        if answer.topics[0].error_code:
            told = answer.topics[0].error_message or f"error {answer.topics[0].error_code}"
            raise RequestFailed(f"{name}: {told}")
        self.await_topic(name, partitions)

    def await_topic(self, name: str, partitions: int) -> None:
        """Until the leaders of so many of its partitions serve them."""
        deadline = time.monotonic() + SETTLING_S
        while True:
            try:
                self._check_settled(name, partitions)
                return
            except NotYet:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _check_settled(self, topic: str, partitions: int) -> None:
        there = len(self.end_offsets(topic))
        if there < partitions:
            raise NotYet(f"{topic} has {there} of {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        answer = self.call(DeleteTopicsRequest([DeleteTopicState(name)], [name], 30000), 5)
        if answer.responses[0].error_code:
            raise RequestFailed(f"{name}: error {answer.responses[0].error_code}")

    def leaders(self, topic: str) -> dict[int, Address]:
        """Partition -> address of its leader."""
        answer = self.metadata(topic)
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        _check(topic, answer.topics[0].error_code)
        found = {}
        for partition in answer.topics[0].partitions:
            if partition.leader_id not in nodes:
                raise NotYet(f"{topic}-{partition.partition_index} has no leader")
            found[partition.partition_index] = nodes[partition.leader_id]
        return found

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> end of its log, as its leader says."""
        by_leader: dict[Address, list[int]] = {}
        for partition, address in self.leaders(topic).items():
            by_leader.setdefault(address, []).append(partition)
        ends: dict[int, int] = {}
        for address, partitions in by_leader.items():
            with Client(*address) as leader:
                ends |= leader._own_end_offsets(topic, partitions)
        return ends

    def _own_end_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        wanted = [ListOffsetsPartition(partition, -1, -1) for partition in partitions]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, wanted)])
        answer = self.call(request, 5).topics[0].partitions
        for told in answer:
            _check(f"{topic}-{told.partition_index}", told.error_code)
        return {told.partition_index: told.offset for told in answer}


def _check(what: str, error_code: int) -> None:
    if error_code:
        kind = NotYet if error_code in _NOT_YET else RequestFailed
        raise kind(f"{what}: error {error_code}")
