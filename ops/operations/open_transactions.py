"""Transactions that are open in partitions, as the leaders of the partitions know them.

transactions.py asks their coordinators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)
from moldau.ops.client import (
    STALE_LEADER,
    Cluster,
    Node,
    TopicPartition,
    leaders_of,
    partitions_of,
    refusal,
)

PARTITIONS_OF_A_REQUEST = 200


class OpenTransaction(NamedTuple):
    """A transaction that has not ended in a partition, as its leader knows it."""

    place: TopicPartition
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int  # of the producer's newest record there


def open_transactions(
    cluster: Cluster, places: Collection[TopicPartition]
) -> list[OpenTransaction]:
    """Open transactions by partition and offset; partitions that do not exist are left out."""
    found, moved = _ask_leaders(cluster, places)
    if moved:
        more, moved = _ask_leaders(cluster, moved)
        found |= more
    for place, code in moved.items():
        raise refusal(f"partition {place}", code)
    return sorted(
        OpenTransaction(
            place,
            one.current_txn_start_offset,
            one.producer_id,
            one.producer_epoch,
            one.coordinator_epoch,
            one.last_timestamp,
        )
        for place, producers in found.items()
        for one in producers
        if one.current_txn_start_offset >= 0
    )


Producers = dict[TopicPartition, list[ProducerState]]
Moved = dict[TopicPartition, ErrorCode]


def _ask_leaders(cluster: Cluster, places: Iterable[TopicPartition]) -> tuple[Producers, Moved]:
    """The producers of partitions, and the partitions whose leader has changed."""
    wanted = frozenset(places)
    if not wanted:
        return {}, {}
    answer = cluster.metadata(sorted({place.topic for place in wanted}))
    leaders = leaders_of(answer)
    by_leader: dict[Node, list[TopicPartition]] = {}
    found: Producers = {}
    moved: Moved = {}
    for place in partitions_of(answer):
        if place in wanted and place in leaders:
            by_leader.setdefault(leaders[place], []).append(place)
        elif place in wanted:
            moved[place] = ErrorCode.LEADER_NOT_AVAILABLE
    for leader, led in by_leader.items():
        for place, one in _describe(cluster, leader, led):
            if one.error_code in STALE_LEADER:
                moved[place] = ErrorCode(one.error_code)
            elif one.error_code == 0:
                found[place] = one.active_producers
            elif one.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(f"partition {place}", one.error_code, one.error_message)
    return found, moved


def _describe(
    cluster: Cluster, leader: Node, places: Sequence[TopicPartition]
) -> Iterator[tuple[TopicPartition, PartitionResponse]]:
    for at in range(0, len(places), PARTITIONS_OF_A_REQUEST):
        topics: dict[str, list[int]] = {}
        for place in places[at : at + PARTITIONS_OF_A_REQUEST]:
            topics.setdefault(place.topic, []).append(place.partition)
        request = DescribeProducersRequest([TopicRequest(*item) for item in topics.items()])
        for topic in cluster.call(request, leader).topics:
            for one in topic.partitions:
                yield TopicPartition(topic.name, one.partition_index), one
