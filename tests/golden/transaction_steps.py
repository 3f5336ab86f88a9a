"""What cases of transactions are made of.

The identity of a producer is what the last InitProducerId or EndTxn of its transactional id gave to
it: `seen["producers"]`.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.broker.wire.schema import Message
from tests.golden.batches import TIMESTAMP
from tests.golden.harness import Step, Values
from tests.support.raw.transactions import batch_of

TRANSACTION, GROUP = 1, 0
READ_COMMITTED = 1
LATEST, MAX_TIMESTAMP = -1, -3
MINUTE_MS = 60_000
ANOTHER = 987_654_321  # a producer id that is not in use


# --- producers ---


def init(
    name: str | None,
    timeout_ms: int = MINUTE_MS,
    *,
    goes_on: int | None = None,
    another: bool = False,
    version: int = 5,
    is_setup: bool = False,
) -> Step:
    """`goes_on`: with its id, and an epoch so much above the current one."""

    def request(seen: Values) -> Message:
        if goes_on is None:
            return InitProducerIdRequest(name, timeout_ms)
        producer_id, epoch = seen["producers"].get(name, (ANOTHER, 0))
        return InitProducerIdRequest(
            name, timeout_ms, ANOTHER if another else producer_id, epoch + goes_on
        )

    return Step(request, version, is_setup)


def begin(*names: str) -> list[Step]:
    """Producers to work with."""
    steps = []
    for name in names:
        found = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[name])
        steps += [Step(found, is_setup=True), init(name, is_setup=True)]
    return steps


def _with_identity(
    name: str,
    make: Callable[[int, int], Message],
    version: int | None,
    *,
    epoch: int = 0,
    another: bool = False,
    is_setup: bool = False,
) -> Step:
    """A request with the identity of `name`: its epoch changed by `epoch`, or another id."""

    def request(seen: Values) -> Message:
        known, current = seen["producers"].get(name, (ANOTHER, 0))
        return make(ANOTHER if another else known, current + epoch)

    return Step(request, version, is_setup)


def add(
    name: str,
    *topics: tuple[str, list[int]],
    version: int = 3,
    verify_only: bool = False,
    epoch: int = 0,
    another: bool = False,
    is_setup: bool = False,
) -> Step:
    wanted = [AddPartitionsToTxnTopic(topic, partitions) for topic, partitions in topics]

    def make(producer_id: int, producer_epoch: int) -> Message:
        if version < 4:
            return AddPartitionsToTxnRequest([], name, producer_id, producer_epoch, wanted)
        one = AddPartitionsToTxnTransaction(name, producer_id, producer_epoch, verify_only, wanted)
        return AddPartitionsToTxnRequest([one])

    return _with_identity(name, make, version, epoch=epoch, another=another, is_setup=is_setup)


def end(
    name: str,
    *,
    commit: bool,
    version: int = 5,
    epoch: int = 0,
    another: bool = False,
    is_setup: bool = False,
) -> Step:
    return _with_identity(
        name,
        lambda producer_id, current: EndTxnRequest(name, producer_id, current, commit),
        version,
        epoch=epoch,
        another=another,
        is_setup=is_setup,
    )


def settled(name: str) -> Step:
    """Its markers are written: repeated until then."""
    return Step(DescribeTransactionsRequest([name]), is_setup=True)


def produce(
    name: str,
    topic: str,
    *,
    partition: int = 0,
    version: int = 12,
    sequence: int = 0,
    transactional_id: str | None = "",
    plain: bool = False,
    timestamp: int | None = TIMESTAMP,
    epoch: int = 0,
    another: bool = False,
    is_setup: bool = False,
) -> Step:
    def make(producer_id: int, producer_epoch: int) -> Message:
        batch = batch_of(
            b"a",
            b"b",
            producer_id=producer_id,
            epoch=producer_epoch,
            sequence=sequence,
            plain=plain,
            timestamp=timestamp,
        )
        data = [PartitionProduceData(partition, memoryview(batch))]
        return ProduceRequest(
            name if transactional_id == "" else transactional_id,
            -1,
            10_000,
            [TopicProduceData(topic, partition_data=data)],
        )

    return _with_identity(name, make, version, epoch=epoch, another=another, is_setup=is_setup)


# --- offsets ---


def commit_offset(
    name: str,
    group: str,
    topic: str,
    *,
    partition: int = 0,
    version: int = 5,
    generation: int = -1,
    member: str = "",
    metadata: str = "",
    epoch: int = 0,
    another: bool = False,
) -> Step:
    item = TxnOffsetCommitRequestPartition(partition, 3, -1, metadata)
    topics = [TxnOffsetCommitRequestTopic(topic, [item])]

    def make(producer_id: int, producer_epoch: int) -> Message:
        return TxnOffsetCommitRequest(
            name, group, producer_id, producer_epoch, generation, member, None, topics
        )

    return _with_identity(name, make, version, epoch=epoch, another=another)


def add_offsets(
    name: str,
    group: str,
    *,
    version: int = 4,
    epoch: int = 0,
    another: bool = False,
    is_setup: bool = False,
) -> Step:
    return _with_identity(
        name,
        lambda producer_id, current: AddOffsetsToTxnRequest(name, producer_id, current, group),
        version,
        epoch=epoch,
        another=another,
        is_setup=is_setup,
    )


def offset_of(group: str, topic: str, *, stable: bool) -> Step:
    topics = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group, topics=topics)]
    return Step(OffsetFetchRequest(groups=groups, require_stable=stable), 9)


# --- looking, repairing ---


def listing(
    pattern: str | None = "golden-lt-.*",
    *,
    states: list[str] | None = None,
    duration_ms: int = -1,
    another: bool = False,
    version: int = 2,
) -> Step:
    ids = [ANOTHER] if another else []
    return Step(ListTransactionsRequest(states or [], ids, duration_ms, pattern), version)


def one_listed(seen: Values) -> Message:
    return ListTransactionsRequest([], [seen["producers"]["golden-lt-b"][0]], -1, None)


def describe_producers(*topics: tuple[str, list[int]]) -> Step:
    return Step(
        DescribeProducersRequest([TopicRequest(name, partitions) for name, partitions in topics])
    )


def marker(
    name: str, *topics: tuple[str, list[int]], commit: bool, epoch: int = 0, version: int = 1
) -> Step:
    """An administrator's."""
    wanted = [WritableTxnMarkerTopic(topic, partitions) for topic, partitions in topics]
    return _with_identity(
        name,
        lambda producer_id, current: WriteTxnMarkersRequest(
            [WritableTxnMarker(producer_id, current, commit, wanted, 0)]
        ),
        version,
        epoch=epoch,
    )


def fetch(topic: str, offset: int = 0, *, level: int = READ_COMMITTED) -> Step:
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=level,
        topics=[FetchTopic(topic, partitions=[wanted])],
    )
    return Step(request, 12)


def offsets(topic: str, timestamp: int, *, level: int = READ_COMMITTED) -> Step:
    wanted = [ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=timestamp)])]
    return Step(ListOffsetsRequest(-1, level, wanted, 1000), 11)
