"""The client that sets benchmarks up: topics, their leaders and ends, on top of ops/client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.requests import CLIENT_ID, VERSIONS
from moldau.loadtest.bench.harness.secured import security_in_use
from moldau.ops.client import Connection, error_name

Address = tuple[str, int]

TOPIC_READY_TIMEOUT_S = 30.0
PARTITION_READY_TIMEOUT_S = 0.1  # more for each: Kafka makes directories for them
MOST_AT_ONCE = 5_000  # partitions: Kafka refuses to make 10,000 with one request
# What a broker answers about a partition it will soon know: in Kafka a new topic reaches the
# leaders of its partitions later than the response reaches the client.
_NOT_READY = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class RequestFailed(RuntimeError):
    """The broker responded with an error code, or not as a benchmark relies on."""


class NotReady(RequestFailed):
    """The broker does not know the topic yet, and may in a moment."""


def new_name(prefix: str = "bench") -> str:
    """A name of its own for each run: other brokers delete topics in the background."""
    return f"{prefix}-{secrets.token_hex(4)}"


def check_error(subject: str, code: int) -> None:
    if code:
        kind = NotReady if code in _NOT_READY else RequestFailed
        raise kind(f"{subject}: {error_name(code)}")


class Client(Connection):
    """One connection; one request at a time."""

    def __init__(self, address: Address, client_id: str = CLIENT_ID) -> None:
        super().__init__(address, security=security_in_use(), client_id=client_id)

    def ask(self, request: Message) -> Any:
        """Send a request in the version that benchmarks use, and wait for the reply."""
        return self.call(request, VERSIONS[type(request)])

    def metadata(self, topic: str | None = None) -> MetadataResponse:
        topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask(request)
        return answer

    def brokers(self) -> list[Address]:
        """The advertised addresses, by node id: of a Moldau those of its workers."""
        nodes = sorted(self.metadata().brokers, key=lambda node: node.node_id)
        return [(node.host, node.port) for node in nodes]

    # --- topics ---

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        """And wait until the leaders of its partitions serve it."""
        settings = [CreatableTopicConfig(*item) for item in (configs or {}).items()]
        topic = CreatableTopic(name, min(partitions, MOST_AT_ONCE), 1, [], settings)
        (answer,) = self.ask(CreateTopicsRequest([topic])).topics
        if answer.error_code:
            raise RequestFailed(f"{name}: {answer.error_message or error_name(answer.error_code)}")
        for grown in range(2 * MOST_AT_ONCE, partitions + MOST_AT_ONCE, MOST_AT_ONCE):
            more = CreatePartitionsTopic(name, min(grown, partitions), None)
            check_error(name, self.ask(CreatePartitionsRequest([more])).results[0].error_code)
        self.await_topic(name, partitions)

    def await_topic(self, name: str, partitions: int) -> None:
        """Wait until the leaders of so many partitions serve them."""
        patience = TOPIC_READY_TIMEOUT_S + PARTITION_READY_TIMEOUT_S * partitions
        deadline = time.monotonic() + patience
        while True:
            try:
                self._check_ready(name, partitions)
                return
            except NotReady:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _check_ready(self, topic: str, partitions: int) -> None:
        found = len(self.end_offsets(topic))
        if found < partitions:
            raise NotReady(f"{topic} has {found} of {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest([DeleteTopicState(name)], [name], 30000)
        check_error(name, self.ask(request).responses[0].error_code)

    @contextmanager
    def temporary_topic(
        self, partitions: int, configs: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        name = new_name()
        self.create_topic(name, partitions, configs)
        try:
            yield name
        finally:
            self.delete_topic(name)

    # --- leaders and offsets ---

    def leaders(self, topic: str) -> dict[int, Address]:
        """Partition -> address of its leader."""
        answer = self.metadata(topic)
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        check_error(topic, answer.topics[0].error_code)
        found = {}
        for partition in answer.topics[0].partitions:
            if partition.leader_id not in nodes:
                raise NotReady(f"{topic}-{partition.partition_index} has no leader")
            found[partition.partition_index] = nodes[partition.leader_id]
        return found

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> end of its log, from its leader."""
        by_leader: dict[Address, list[int]] = {}
        for partition, address in self.leaders(topic).items():
            by_leader.setdefault(address, []).append(partition)
        ends: dict[int, int] = {}
        for address, partitions in by_leader.items():
            with Client(address) as leader:
                ends |= leader._list_end_offsets(topic, partitions)
        return ends

    def _list_end_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        wanted = [ListOffsetsPartition(partition, -1, -1) for partition in partitions]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, wanted)])
        listed = self.ask(request).topics[0].partitions
        for one in listed:
            check_error(f"{topic}-{one.partition_index}", one.error_code)
        return {one.partition_index: one.offset for one in listed}
