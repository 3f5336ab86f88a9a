"""What a mirror takes for a hole in the log of its source.

A source that has records in tiered storage cannot be run here: this one answers as Kafka does.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from moldau.ops.client import ClientError, Cluster, Node, TopicPartition
from moldau.ops.mirror.copying import EARLIEST_LOCAL, Copying
from moldau.ops.mirror.partition import PartitionMirror
from tests.support.raw.client import make_batch

PLACE = TopicPartition("t", 0)
END = 3


class Source:
    """Has three records up to its end. What lies before `local` is in tiered storage, from which it
    answers only who waits for long."""

    def __init__(self, local: int, patience_ms: int | None) -> None:
        self._local = local
        self._patience_ms = patience_ms

    def leader(self, place: TopicPartition) -> Node:
        return Node(1, "there", 1)

    def list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert wanted == {PLACE: EARLIEST_LOCAL}
        return {PLACE: self._local}

    def call(self, request: FetchRequest, node: Node) -> FetchResponse:
        data = PartitionData(0, high_watermark=END, records=b"")
        if self._patience_ms is not None and request.max_wait_ms >= self._patience_ms:
            data.records = make_batch([(None, b"%d" % number, 1) for number in range(END)])
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[data])])


class Damaged(Source):
    """Its first partition cannot be read."""

    def call(self, request: FetchRequest, node: Node) -> FetchResponse:
        whole = super().call(request, node).responses[0].partitions[0]
        whole.partition_index = 1
        bad = PartitionData(0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[bad, whole])])

    def forget_leader(self, place: TopicPartition) -> None:
        assert place == PLACE


class Target:
    def __init__(self) -> None:
        self.ends: list[int] = []
        self.records = 0

    def leader(self, place: TopicPartition) -> Node:
        return Node(1, "here", 1)

    def call(self, request: ProduceRequest, node: Node) -> ProduceResponse:
        records: Any = request.topic_data[0].partition_data[0].records
        header = read_header(records)
        self.ends.append(header.next_offset)
        self.records += header.record_count
        return ProduceResponse(
            [TopicProduceResponse("t", partition_responses=[PartitionProduceResponse(0)])]
        )


@pytest.mark.parametrize(
    ("local", "patience_ms", "ends", "records"),
    [
        (0, None, [END], 0),  # nothing is left below its end
        (-1, None, [END], 0),  # so says an old one that has no records
        (END, None, [], 0),  # the storage does not answer
        (END, 5000, [END], END),
    ],
)
def test_what_is_in_tiered_storage_is_no_hole(
    local: int, patience_ms: int | None, ends: list[int], records: int
) -> None:
    target = Target()
    one = PartitionMirror(PLACE)
    one.begin(0, 0)
    one.source_end = END
    copying = Copying(cast(Cluster, Source(local, patience_ms)), cast(Cluster, target))
    copying.step([one])
    assert (target.ends, target.records) == (ends, records)


def test_a_partition_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    target, both = Target(), [PartitionMirror(PLACE), PartitionMirror(TopicPartition("t", 1))]
    for one in both:
        one.begin(0, 0)
        one.source_end = END
    copying = Copying(cast(Cluster, Damaged(0, 0)), cast(Cluster, target))
    with pytest.raises(ClientError, match=str(PLACE)):
        copying.step(both)
    assert target.records == END
