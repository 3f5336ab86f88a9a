"""Records: produced, fetched, looked up; producer ids."""

from __future__ import annotations

from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.golden.batches import (
    garbage_gzip,
    garbage_lz4,
    garbage_snappy,
    garbage_zstd,
    good,
    keyless_of_three,
    miscounted,
    negative_delta,
    offsets_not_in_order,
    overrunning,
    trailing_bytes,
)
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create


def fetch_id(seen: Values) -> bytes:
    found: bytes = seen["ids"]["golden-p-a"]
    return found


def produce(
    name: str, *batches: bytes | bytearray | None, partition: int = 0, version: int = 12
) -> Step:
    data = [PartitionProduceData(partition, None if b is None else memoryview(b)) for b in batches]
    return Step(
        ProduceRequest(None, -1, 10_000, [TopicProduceData(name, partition_data=data)]), version
    )


def produce_to_unknown_partition(seen: Values) -> ProduceRequest:
    data = [PartitionProduceData(9, memoryview(good()))]
    return ProduceRequest(
        None, -1, 10_000, [TopicProduceData(topic_id=fetch_id(seen), partition_data=data)]
    )


def produce_to_unknown_id(seen: Values) -> ProduceRequest:
    data = [PartitionProduceData(0, memoryview(good()))]
    return ProduceRequest(
        None, -1, 10_000, [TopicProduceData(topic_id=b"\1" * 16, partition_data=data)]
    )


PRODUCE = Case(
    [
        create("golden-p-a"),
        Step(produce_to_unknown_partition, 13),
        Step(produce_to_unknown_id, 13),
        produce("golden-p-a", good(), partition=9),
        produce("golden-p-missing", good()),
        produce("golden-p-a", b""),
        produce("golden-p-a", good() + good()),
    ]
)

PRODUCE_UNREADABLE = Case(
    [
        create("golden-u-a"),
        produce("golden-u-a", garbage_gzip()),
        produce("golden-u-a", garbage_snappy()),
        produce("golden-u-a", garbage_lz4()),
        produce("golden-u-a", garbage_zstd()),
        produce("golden-u-a", miscounted(3)),
        produce("golden-u-a", miscounted(0)),
        produce("golden-u-a", trailing_bytes()),
        produce("golden-u-a", overrunning()),
        produce("golden-u-a", offsets_not_in_order()),
        produce("golden-u-a", negative_delta()),
        produce("golden-u-a", good()),
    ],
    differs={
        1: "INVALID_RECORD; in Kafka the codec fails with UNKNOWN_SERVER_ERROR",
        2: "likewise",
        3: "likewise",
        4: "likewise",
        9: "refused: two records would have one offset",
        10: "refused: a record would have the offset before its batch",
        11: "the two before are not in the log",
    },
)

PRODUCE_KEYLESS = Case(
    [
        create("golden-k-a", cleanup_policy="compact"),
        produce("golden-k-a", keyless_of_three()),
        produce("golden-k-a", good()),
    ]
)


def fetch(session_id: int, epoch: int, version: int = 12, *topics: FetchTopic) -> Step:
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=list(topics)
    )
    return Step(request, version)


FETCH = Case(
    [
        create("golden-f-a"),
        fetch(0, 3),
        fetch(0, 0),
        fetch(0, -1),
        fetch(77, 3),
        fetch(77, -1),
        fetch(77, 0),
        fetch(
            0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0), FetchPartition(9)])
        ),
        fetch(0, -1, 12, FetchTopic("golden-f-missing", partitions=[FetchPartition(0)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, 5)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, fetch_offset=7)])),
        fetch(0, -1, 12, FetchTopic("golden-f-a", partitions=[FetchPartition(0, fetch_offset=-7)])),
    ],
    differs={
        7: "aborted transactions of a partition without an answer: null, not empty",
        8: "likewise",
        10: "tells where the log begins and ends; Kafka does not",
        11: "likewise",
    },
)


def list_offsets(*topics: tuple[str, list[tuple[int, int]]], version: int = 11) -> Step:
    wanted = [
        ListOffsetsTopic(
            name, [ListOffsetsPartition(at, timestamp=timestamp) for at, timestamp in partitions]
        )
        for name, partitions in topics
    ]
    return Step(ListOffsetsRequest(replica_id=-1, topics=wanted, timeout_ms=1000), version)


LIST_OFFSETS = Case(
    [
        create("golden-lo-a", partitions=2),
        list_offsets(("golden-lo-a", [(0, -1), (0, -2), (1, -1)])),
        list_offsets(("golden-lo-a", [(0, -1)]), ("golden-lo-a", [(1, -1)])),
        list_offsets(("golden-lo-a", [(0, -1)]), ("golden-lo-a", [(0, -1)])),
        list_offsets(("golden-lo-a", [(7, -1)])),
        list_offsets(("golden-lo-missing", [(0, -1)])),
        list_offsets(("golden-lo-a", [(0, -3), (1, -4)])),
        list_offsets(("golden-lo-a", [(0, -5), (1, -6)])),
        list_offsets(("golden-lo-a", [(0, -99)])),
    ]
)

INIT_PRODUCER_ID = Case(
    [
        Step(InitProducerIdRequest(None, 0, -1, 3)),
        Step(InitProducerIdRequest(None, 0, 5, -1)),
        Step(InitProducerIdRequest("", 0, -1, -1)),
    ]
)
