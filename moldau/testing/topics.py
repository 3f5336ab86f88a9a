"""Topics, records and lag of a broker, without a client library."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.records import decode_headers
from moldau.ops.client import (
    EARLIEST,
    LATEST,
    RETRIABLE,
    ClientError,
    Cluster,
    TopicPartition,
    Unreachable,
    refusal,
)
from moldau.ops.client.membership import Membership, RejoinNeeded
from moldau.ops.client.partitioning import partition_of
from moldau.ops.client.reading import read
from moldau.ops.client.sending import Outgoing, Sequenced, send

TIMEOUT_S = 30.0
RETRY_S = 0.05
DEFAULT_PARTITIONS = -1  # num.partitions
WAIT_MS = 100  # for records, per request

Value = bytes | str | None
T = TypeVar("T")
_numbers = itertools.count(1)


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Topics:
    """What tests do with topics. Requests are repeated while a broker restarts, so that a test can
    go on right after `kill_worker`. Raises TimeoutError and ClientError."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        """`cluster` opens connections to the broker."""
        self._open = cluster
        self._opened: Cluster | None = None
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._known: set[str] = set()

    @property
    def cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # --- topics ---

    def create(self, name: str | None, partitions: int, config: Mapping[str, object] | None) -> str:
        name = name or f"test-{os.getpid()}-{next(_numbers)}"
        configs = [CreatableTopicConfig(key, str(value)) for key, value in (config or {}).items()]
        wanted = CreatableTopic(name, partitions, 1, configs=configs)
        request = CreateTopicsRequest([wanted], int(TIMEOUT_S * 1000))
        (answer,) = self._retried(lambda: self.cluster.call(request)).topics
        if answer.error_code:
            raise refusal(f"topic {name}", answer.error_code, answer.error_message)
        return name

    def _partitions(self, topic: str, timeout: float = TIMEOUT_S) -> list[TopicPartition]:
        def look_up() -> list[TopicPartition]:
            found = self.cluster.topics([topic])
            if topic not in found:
                raise refusal(f"topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partitions = found[topic].partitions
            return [TopicPartition(topic, each.partition_index) for each in partitions]

        return self._retried(look_up, timeout)

    def _create_missing(self, topic: str) -> None:
        """Create the topic as producers do. Topics that are known are not looked up again."""
        if topic in self._known:
            return
        if topic not in self._retried(lambda: self.cluster.topics([topic])):
            self.create(topic, DEFAULT_PARTITIONS, None)
        self._known.add(topic)

    # --- records ---

    def produce(
        self,
        topic: str,
        values: Iterable[Value],
        key: Value,
        partition: int | None,
        headers: Mapping[str, Value] | None,
    ) -> list[int]:
        """Returns the offset of each."""
        encoded = [(name, _bytes(value)) for name, value in (headers or {}).items()]
        outgoing = [Outgoing(_bytes(key), _bytes(value), encoded) for value in values]
        if not outgoing:
            return []
        self._create_missing(topic)
        if partition is None:
            count = len(self._partitions(topic))
            partition = 0 if key is None else partition_of(_bytes(key), 0, count)
        place = TopicPartition(topic, partition)
        if self._producer is None:
            self._producer = self._retried(self._new_producer)
        sequence = self._sequences.get(place, 0)
        sequenced = Sequenced(*self._producer, sequence)
        first = self._retried(lambda: send(self.cluster, place, outgoing, sequenced=sequenced))
        self._sequences[place] = sequence + len(outgoing)
        return list(range(first, first + len(outgoing)))

    def _new_producer(self) -> tuple[int, int]:
        """Its id and epoch, with which a request that is repeated appends nothing twice."""
        answer = self.cluster.call(InitProducerIdRequest(None, int(TIMEOUT_S * 1000)))
        if answer.error_code:
            raise refusal("producer id", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    def records(self, topic: str, count: int, timeout: float) -> list[Record]:
        """The first `count` records, of all partitions together."""
        places = self._partitions(topic, timeout)
        next_offsets = self._retried(
            lambda: self.cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        )
        found: list[Record] = []
        deadline = time.monotonic() + timeout
        positions = {place: offset for place, offset in next_offsets.items() if offset is not None}
        while len(found) < count:
            for place, offset in positions.items():
                found += self._read(place, offset, positions)
            if len(found) < count and time.monotonic() > deadline:
                raise TimeoutError(
                    f"topic {topic} has {len(found)} of {count} records after {timeout:g} s"
                )
        return sorted(found, key=lambda each: (each.timestamp, each.partition, each.offset))[:count]

    def _read(
        self, place: TopicPartition, offset: int, positions: dict[TopicPartition, int]
    ) -> list[Record]:
        got = self._retried(lambda: read(self.cluster, place, offset, wait_ms=WAIT_MS))
        positions[place] = got.next_offset
        return [
            Record(
                place.topic,
                place.partition,
                each.offset,
                each.timestamp,
                each.key,
                each.value,
                decode_headers(each.headers),
            )
            for each in got.records
        ]

    def records_of_group(self, topic: str, count: int, group: str, timeout: float) -> list[Record]:
        """The next `count` records of a group, as its only member or one of several; commits."""
        places = self._partitions(topic, timeout)
        member = Membership(
            partial(self.cluster.call_coordinator, group), group, topic, len(places)
        )
        found: list[Record] = []
        deadline = time.monotonic() + timeout
        try:
            while len(found) < count:
                try:
                    positions = self._positions_of_group(member, topic)
                    while len(found) < count and time.monotonic() < deadline:
                        got = self._read_as_member(positions, count - len(found))
                        member.commit({each.partition: at for each, at in positions.items()})
                        found += got  # what could not be committed is read again
                        member.heartbeat()
                except RejoinNeeded:
                    pass
                if len(found) < count and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"group {group} got {len(found)} of {count} records of topic {topic} "
                        f"within {timeout:g} s"
                    )
        finally:
            member.leave()
        return found

    def _positions_of_group(self, member: Membership, topic: str) -> dict[TopicPartition, int]:
        own = self._retried(member.join)
        starts = self.cluster.list_offsets(
            {TopicPartition(topic, partition): EARLIEST for partition in own}
        )
        committed = member.committed(own) if own else {}
        return {
            place: committed.get(place.partition, start or 0) for place, start in starts.items()
        }

    def _read_as_member(self, positions: dict[TopicPartition, int], count: int) -> list[Record]:
        found: list[Record] = []
        for place, offset in list(positions.items()):
            got = self._read(place, offset, positions)
            room = count - len(found)
            if len(got) > room:  # the others are the next call's
                positions[place] = got[room].offset
            found += got[:room]
        return found

    def ends(self, topic: str) -> int:
        """How many offsets the partitions have given out, all together."""
        places = self._partitions(topic)
        ends = self._retried(lambda: self.cluster.list_offsets(dict.fromkeys(places, LATEST)))
        return sum(end or 0 for end in ends.values())

    def lag(self, group: str, topic: str) -> int:
        """Count records above the committed offsets; without one, all of a partition."""
        places = self._partitions(topic)
        starts = self._retried(lambda: self.cluster.list_offsets(dict.fromkeys(places, EARLIEST)))
        ends = self._retried(lambda: self.cluster.list_offsets(dict.fromkeys(places, LATEST)))
        member = Membership(
            partial(self.cluster.call_coordinator, group), group, topic, len(places)
        )
        committed = self._retried(lambda: member.committed([place.partition for place in places]))
        return sum(
            max((ends[place] or 0) - committed.get(place.partition, starts[place] or 0), 0)
            for place in places
        )

    # --- asking ---

    def ready(self, timeout: float = TIMEOUT_S) -> None:
        """Wait until the broker answers."""
        self._retried(self.cluster.metadata, timeout)

    def _retried(self, ask: Callable[[], T], timeout: float = TIMEOUT_S) -> T:
        """Connections break and leaders are missing for a moment while a process restarts."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return ask()
            except ClientError as error:
                is_temporary = isinstance(error, Unreachable) or error.code in RETRIABLE
                if not is_temporary or time.monotonic() > deadline:
                    raise
                self.cluster.close()
                time.sleep(RETRY_S)


def _bytes(value: Value) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
