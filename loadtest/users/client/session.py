"""A user's connections: whom to ask (Metadata, FindCoordinator), one connection per purpose."""

from __future__ import annotations

import time
from typing import Any

from broker.errors import ErrorCode
from broker.wire.batch import Buffer
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Message
from loadtest.users.client.connection import Address, CodeOf, Refused, Report, Wire, top_level

LATEST, EARLIEST = -1, -2
RETRY_S = 0.1
# Ask again whom to ask, then again.
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
# It did not happen, or may have: to be sent again by those who may.
RETRIABLE = MOVED | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
Fault = (OSError, MalformedMessage, Refused)


def first_partition(answer: Any) -> int:
    """The error code of an answer about one partition of one topic."""
    code: int = answer.topics[0].partitions[0].error_code
    return code


def _fetched(answer: Any) -> int:
    if answer.error_code:
        return int(answer.error_code)
    return int(answer.responses[0].partitions[0].error_code)


class Session:
    """One user's. Raises what Wire raises; after that, `forget` makes it look around anew."""

    def __init__(self, bootstrap: Address, client_id: str, report: Report) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._report = report
        self._wires: dict[tuple[str, Address], Wire] = {}
        self._leaders: dict[tuple[str, int], Address] = {}
        self._coordinators: dict[str, Address] = {}

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def forget(self) -> None:
        self._leaders.clear()
        self._coordinators.clear()

    def wire(self, purpose: str, address: Address | None = None) -> Wire:
        where = purpose, address or self._bootstrap
        if where not in self._wires:
            self._wires[where] = Wire(where[1], self._client_id, self._report)
        return self._wires[where]

    # --- whom to ask ---

    def partitions(self, topic: str) -> list[int]:
        """Those of a topic, which need not exist yet: it is waited for."""
        while True:
            self._look(topic)
            found = sorted(number for name, number in self._leaders if name == topic)
            if found:
                return found
            time.sleep(RETRY_S)

    def _look(self, topic: str) -> None:
        request = MetadataRequest([MetadataRequestTopic(name=topic)], False)
        answer = self.wire("admin").call(request)
        nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        for told in answer.topics:
            for partition in told.partitions:
                if partition.leader_id in nodes:
                    place = topic, partition.partition_index
                    self._leaders[place] = nodes[partition.leader_id]

    def leader(self, topic: str, partition: int, purpose: str) -> Wire:
        if (topic, partition) not in self._leaders:
            self._look(topic)
        if (topic, partition) not in self._leaders:
            raise Refused("Metadata", ErrorCode.LEADER_NOT_AVAILABLE)
        return self.wire(purpose, self._leaders[topic, partition])

    def coordinator(self, group: str, purpose: str, asking: str = "admin") -> Wire:
        """`asking` is the connection to find out with: greenlets must not share one."""
        if group not in self._coordinators:
            # Not a fault of the broker: it says "not yet" while a worker comes back.
            answer = self.wire(asking).call(
                FindCoordinatorRequest(group),
                top_level,
                fine=(ErrorCode.COORDINATOR_NOT_AVAILABLE,),
            )
            if answer.error_code:
                raise Refused("FindCoordinator", answer.error_code)
            self._coordinators[group] = answer.host, answer.port
        return self.wire(purpose, self._coordinators[group])

    def ask(self, request: Message, code_of: CodeOf | None = None, due: float | None = None) -> Any:
        return self.wire("admin").call(request, code_of, due=due)

    # --- topics and logs ---

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        """Unless it is there."""
        settings = [CreatableTopicConfig(*item) for item in configs.items()]
        request = CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)])
        self.wire("admin").call(
            request,
            lambda answer: int(answer.topics[0].error_code),
            fine=(ErrorCode.TOPIC_ALREADY_EXISTS,),
        )

    def offset(self, topic: str, partition: int, when: int, due: float | None = None) -> int:
        """The end of the log (LATEST) or its start (EARLIEST)."""
        place = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, when)])
        wire = self.leader(topic, partition, "admin")
        answer = wire.call(ListOffsetsRequest(-1, 0, [place]), first_partition, due=due)
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
    ) -> PartitionData:
        """May have the error OFFSET_OUT_OF_RANGE: see `out_of_range`."""
        place = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic, partitions=[place])],
        )
        wire = self.leader(topic, partition, purpose)
        answer = wire.call(request, _fetched, due=due, fine=(ErrorCode.OFFSET_OUT_OF_RANGE,))
        found: PartitionData = answer.responses[0].partitions[0]
        return found

    def out_of_range(self, topic: str, partition: int, offset: int) -> tuple[int, list[str]]:
        """Where to read on from when `offset` is not in the log, and what is wrong with that.

        Nothing, when retention has taken it; a log that ends before what was in it has lost it.
        """
        start = self.offset(topic, partition, EARLIEST)
        end = self.offset(topic, partition, LATEST)
        if offset <= end:
            return max(start, offset), []
        return end, [f"lost: {topic}-{partition} ends at {end}, and had offsets up to {offset}"]


def blob_of(answer: PartitionData) -> Buffer:
    records = answer.records or b""
    return b"".join(records) if isinstance(records, list) else records
