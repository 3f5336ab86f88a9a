"""A user's connections: one per purpose and broker, found by Metadata and FindCoordinator."""

from __future__ import annotations

import time
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Message
from moldau.loadtest.users.client.connection import (
    ErrorOf,
    Report,
    RequestRefused,
    UserConnection,
    top_level_error,
)
from moldau.ops.client import EARLIEST, GROUP, LATEST, PLAINTEXT, Address, Security

RETRY_S = 0.1
# The leader or coordinator may be another one now: look it up, and try again.
MOVED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
# It did not happen, or may have happened: an idempotent producer sends it again.
RETRIABLE = MOVED | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
REQUEST_ERRORS = (OSError, MalformedMessage, RequestRefused)


def partition_error(answer: Any) -> int:
    """The error code of a response about one partition of one topic."""
    code: int = answer.topics[0].partitions[0].error_code
    return code


def _fetch_error(answer: Any) -> int:
    if answer.error_code:
        return int(answer.error_code)
    return int(answer.responses[0].partitions[0].error_code)


class Session:
    """Raises REQUEST_ERRORS; call `forget_brokers` then, to look leaders up again."""

    def __init__(
        self,
        bootstrap: Address,
        client_id: str,
        report: Report,
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._report = report
        self._security = security
        self._connections: dict[tuple[str, Address], UserConnection] = {}
        self._leaders: dict[tuple[str, int], Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget_brokers(self) -> None:
        self._leaders.clear()
        self._coordinators.clear()

    def connection(self, purpose: str, address: Address | None = None) -> UserConnection:
        """Connect to the bootstrap address unless another one is named."""
        key = purpose, address or self._bootstrap
        if key not in self._connections:
            self._connections[key] = UserConnection(
                key[1], self._client_id, self._report, self._security
            )
        return self._connections[key]

    # --- leaders and coordinators ---

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; waits until it exists."""
        while True:
            self._find_leaders(topic)
            found = sorted(number for name, number in self._leaders if name == topic)
            if found:
                return found
            time.sleep(RETRY_S)

    def _find_leaders(self, topic: str) -> None:
        request = MetadataRequest([MetadataRequestTopic(name=topic)], False)
        answer = self.connection("admin").call(request)
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        for described in answer.topics:
            for partition in described.partitions:
                if partition.leader_id in nodes:
                    key = topic, partition.partition_index
                    self._leaders[key] = nodes[partition.leader_id]

    def leader(self, topic: str, partition: int, purpose: str) -> UserConnection:
        if (topic, partition) not in self._leaders:
            self._find_leaders(topic)
        if (topic, partition) not in self._leaders:
            raise RequestRefused("Metadata", ErrorCode.LEADER_NOT_AVAILABLE)
        return self.connection(purpose, self._leaders[topic, partition])

    def coordinator(
        self, name: str, purpose: str, lookup: str = "admin", key_type: int = GROUP
    ) -> UserConnection:
        """A connection to the coordinator of a group or a transactional id.

        `lookup` is the purpose of the connection to ask on: greenlets must not share one."""
        if (key_type, name) not in self._coordinators:
            # Not a failure: the router answers COORDINATOR_NOT_AVAILABLE while a worker restarts.
            answer = self.connection(lookup).call(
                FindCoordinatorRequest(name, key_type),
                top_level_error,
                expected=(ErrorCode.COORDINATOR_NOT_AVAILABLE,),
            )
            if answer.error_code:
                raise RequestRefused("FindCoordinator", answer.error_code)
            self._coordinators[key_type, name] = answer.host, answer.port
        return self.connection(purpose, self._coordinators[key_type, name])

    def ask(
        self, request: Message, error_of: ErrorOf | None = None, due: float | None = None
    ) -> Any:
        """Ask the bootstrap broker."""
        return self.connection("admin").call(request, error_of, due=due)

    # --- topics and logs ---

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        """Unless it exists."""
        settings = [CreatableTopicConfig(*item) for item in configs.items()]
        request = CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)])
        self.connection("admin").call(
            request,
            lambda answer: int(answer.topics[0].error_code),
            expected=(ErrorCode.TOPIC_ALREADY_EXISTS,),
        )

    def offset(self, topic: str, partition: int, timestamp: int, due: float | None = None) -> int:
        """The end of the log (LATEST) or its start (EARLIEST)."""
        wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, timestamp)])
        connection = self.leader(topic, partition, "admin")
        answer = connection.call(ListOffsetsRequest(-1, 0, [wanted]), partition_error, due=due)
        found: int = answer.topics[0].partitions[0].offset
        return found

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int = 0,
        purpose: str = "fetch",
        due: float | None = None,
        isolation_level: int = 0,
    ) -> PartitionData:
        """The response may have the error OFFSET_OUT_OF_RANGE: see `out_of_range`."""
        wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic, partitions=[wanted])],
        )
        connection = self.leader(topic, partition, purpose)
        answer = connection.call(
            request, _fetch_error, due=due, expected=(ErrorCode.OFFSET_OUT_OF_RANGE,)
        )
        found: PartitionData = answer.responses[0].partitions[0]
        return found

    def out_of_range(self, topic: str, partition: int, offset: int) -> tuple[int, list[str]]:
        """Where to continue when `offset` is not in the log, and the violations.

        None if retention has removed it; a log that now ends before it has lost records.
        """
        start = self.offset(topic, partition, EARLIEST)
        end = self.offset(topic, partition, LATEST)
        if offset <= end:
            return max(start, offset), []
        return end, [f"lost: {topic}-{partition} ends at {end}, and had offsets up to {offset}"]


def records_of(answer: PartitionData) -> Buffer:
    records = answer.records or b""
    return b"".join(records) if isinstance(records, list) else records
