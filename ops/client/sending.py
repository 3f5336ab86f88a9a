"""Sending a few records to a partition, one batch at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.records import NO_HEADERS, Record, build_batch, encode_headers
from moldau.ops.client.cluster import Cluster
from moldau.ops.client.errors import RETRIABLE, STALE_LEADER, refusal
from moldau.ops.client.names import TopicPartition
from moldau.ops.client.retry import Backoff

ALL = -1
TIMEOUT_MS = 30_000
CREATION_PATIENCE_S = 10.0


class Outgoing(NamedTuple):
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None  # None: now


class Sequenced(NamedTuple):
    """Whose records they are, and the number of the first: a batch that is sent again is appended
    once."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


def send(
    cluster: Cluster,
    place: TopicPartition,
    records: Sequence[Outgoing],
    *,
    acks: int = ALL,
    sequenced: Sequenced = Sequenced(),  # noqa: B008
) -> int:
    """Append records to a partition; returns the offset of the first. Raises ClientError."""
    now = int(time.time() * 1000)
    batch = build_batch(
        [
            Record(
                at,
                now if each.timestamp_ms is None else each.timestamp_ms,
                each.key,
                each.value,
                encode_headers(list(each.headers)) if each.headers else NO_HEADERS,
            )
            for at, each in enumerate(records)
        ],
        base_offset=0,
        last_offset=len(records) - 1,
        **sequenced._asdict(),
    )
    answer = _produce(cluster, place, bytes(batch), acks)
    if answer.error_code in STALE_LEADER:
        cluster.forget_leader(place)
        answer = _produce(cluster, place, bytes(batch), acks)
    if answer.error_code:
        raise refusal(f"partition {place}", answer.error_code, answer.error_message)
    return answer.base_offset


def _produce(
    cluster: Cluster, place: TopicPartition, batch: bytes, acks: int
) -> PartitionProduceResponse:
    data = TopicProduceData(
        place.topic, partition_data=[PartitionProduceData(place.partition, batch)]
    )
    request = ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=[data])
    answer = cluster.call(request, cluster.leader(place))
    found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    return found


def by_partition(
    records: Sequence[tuple[int, Outgoing]],
) -> Mapping[int, list[Outgoing]]:
    """Records with their partitions, gathered; the order within a partition stays."""
    found: dict[int, list[Outgoing]] = {}
    for partition, record in records:
        found.setdefault(partition, []).append(record)
    return found


def partitions_for_sending(cluster: Cluster, topic: str) -> int:
    """How many partitions a topic has; created if the broker creates topics for clients."""
    backoff = Backoff(CREATION_PATIENCE_S)
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    while True:
        (found,) = cluster.call(request).topics
        if found.error_code == 0 and found.partitions:
            return len(found.partitions)
        if found.error_code not in RETRIABLE or not backoff.wait():
            raise refusal(f"topic {topic}", found.error_code)
