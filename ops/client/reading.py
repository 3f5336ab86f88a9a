"""Records of a partition, for people: one request at a time, records decoded."""

from __future__ import annotations

from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import CONTROL, CorruptBatch
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.records import Record, read_records
from moldau.ops.client.batches import READ_COMMITTED, READ_UNCOMMITTED, batches_of
from moldau.ops.client.cluster import Cluster
from moldau.ops.client.errors import STALE_LEADER, refusal
from moldau.ops.client.names import TopicPartition

MAX_BATCH_BYTES = 64 << 20  # decompressed: a batch that claims more is not shown


class Read(NamedTuple):
    """What one request found. `next_offset` is where to go on, also after batches without records:
    markers, aborted ones, those that cannot be read."""

    records: list[Record]
    next_offset: int
    start: int
    end: int
    unreadable: int = 0


class OffsetOutOfRange(Exception):
    """The log begins after, or ends before, the offset that was asked for."""


def read(
    cluster: Cluster,
    place: TopicPartition,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    wait_ms: int = 0,
    committed: bool = True,
) -> Read:
    """The records from `offset` on that fit into a reply; none when there are none in time.

    Raises ClientError and OffsetOutOfRange.
    """
    answer = _fetch(cluster, place, offset, max_bytes, wait_ms, committed)
    if answer.error_code in STALE_LEADER:
        cluster.forget_leader(place)
        answer = _fetch(cluster, place, offset, max_bytes, wait_ms, committed)
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange
    if answer.error_code:
        raise refusal(f"partition {place}", answer.error_code)
    found: list[Record] = []
    unreadable = 0
    following = offset
    for header, data, aborted in batches_of(answer, _level(committed)):
        following = max(following, header.next_offset)
        if aborted or header.attributes & CONTROL:
            continue
        try:
            records = read_records(data, MAX_BATCH_BYTES)
        except CorruptBatch:
            unreadable += 1
            continue
        found += [record for record in records if record.offset >= offset]
    end = answer.last_stable_offset if committed else answer.high_watermark
    return Read(found, following, answer.log_start_offset, end, unreadable)


def _level(committed: bool) -> int:
    return READ_COMMITTED if committed else READ_UNCOMMITTED


def _fetch(
    cluster: Cluster,
    place: TopicPartition,
    offset: int,
    max_bytes: int,
    wait_ms: int,
    committed: bool,
) -> PartitionData:
    wanted = FetchPartition(place.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=_level(committed),
        topics=[FetchTopic(place.topic, partitions=[wanted])],
    )
    answer = cluster.call(request, cluster.leader(place))
    if answer.error_code:
        raise refusal("Fetch", answer.error_code)
    data: PartitionData = answer.responses[0].partitions[0]
    return data
