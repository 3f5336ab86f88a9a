"""What a log has committed, found without the broker's own fold: by its batches and its markers.

read = read_transactions(port, topic, partition)
read.committed, read.aborted, read.markers, read.open
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from moldau.broker.wire.batch import CONTROL, TRANSACTIONAL, headers, read_header, split_batches
from moldau.broker.wire.control import read_end_marker
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.records import read_records
from tests.support.raw.calls import LATEST
from tests.support.raw.client import DECODED_LIMIT, RawClient, batches_in

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
READ_PATIENCE_S = 60.0
FETCH_BYTES = 4 << 20


class MarkerSeen(NamedTuple):
    producer_id: int
    producer_epoch: int
    number: int
    commit: bool


class Transactions:
    """The transactions of a partition. Values are in the order of the log: of two
    transactions that are open at once, the one that began later may have its marker first."""

    def __init__(self, blob: bytes) -> None:
        self.markers: list[MarkerSeen] = []
        self._batches: list[list[bytes]] = []  # values
        self._is_committed: dict[int, bool] = {}  # by number of the batch
        self._open: dict[int, list[int]] = {}  # numbers of batches, by producer id
        for batch in split_batches(blob):
            self._add(batch)

    @property
    def committed(self) -> list[bytes]:
        """Values, of plain batches too."""
        return self._values(n for n, is_it in sorted(self._is_committed.items()) if is_it)

    @property
    def aborted(self) -> list[bytes]:
        return self._values(n for n, is_it in sorted(self._is_committed.items()) if not is_it)

    @property
    def open(self) -> dict[int, list[bytes]]:
        """Values of open transactions by producer id."""
        return {producer_id: self._values(those) for producer_id, those in self._open.items()}

    def _values(self, numbers: Iterable[int]) -> list[bytes]:
        return [value for number in numbers for value in self._batches[number]]

    def _add(self, batch: memoryview) -> None:
        (header,) = headers(batch)
        if header.attributes & CONTROL:
            end = read_end_marker(batch, 0)
            self.markers.append(
                MarkerSeen(
                    header.producer_id, header.producer_epoch, end.coordinator_epoch, end.commit
                )
            )
            for number in self._open.pop(header.producer_id, ()):
                self._is_committed[number] = end.commit
            return
        number = len(self._batches)
        self._batches.append(
            [bytes(record.value or b"") for record in read_records(batch, DECODED_LIMIT)]
        )
        if header.attributes & TRANSACTIONAL:
            self._open.setdefault(header.producer_id, []).append(number)
        else:
            self._is_committed[number] = True

    def check_markers(self) -> None:
        """Each transaction has one marker here at most, and each producer's come in order."""
        newest: dict[int, int] = {}
        for marker in self.markers:
            before = newest.get(marker.producer_id, 0)
            assert marker.number > before, f"after number {before}: {marker}"
            newest[marker.producer_id] = marker.number


def read_transactions(port: int, topic: str, partition: int) -> Transactions:
    """Read all that a worker has of a partition. Where a store lost its tail there is a gap."""
    blobs = []
    offset, end = 0, 1
    with RawClient(port) as client:
        while offset < end:
            answer = client.fetch(topic, offset, partition=partition, max_bytes=FETCH_BYTES)
            assert answer.error_code == 0, answer
            batches = batches_in(answer)
            blobs += batches
            end = answer.high_watermark
            if not batches:  # or behind the last record, and nothing was written since
                break
            offset = read_header(batches[-1]).next_offset
    return Transactions(b"".join(blobs))


def latest(client: RawClient, topic: str, partition: int, isolation: int) -> int:
    wanted = ListOffsetsPartition(partition, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(topic, [wanted])]
    )
    (answer,) = client.call(request).topics[0].partitions
    assert answer.error_code == 0, answer
    return int(answer.offset)


def consume_committed(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """What a real read_committed consumer gets of each partition, to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-committed",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        left = set(range(partitions))
        while left:
            message: Any = consumer.poll(READ_PATIENCE_S)
            assert message is not None, f"nothing more of partitions {left}"
            if message.error() is None:
                found[message.partition()].append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()
    return found
