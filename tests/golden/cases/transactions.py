"""Transactions: producers, partitions and offsets that take part, ends, administration.

Each case has transactional ids of its own. `seen["producers"]` has the identity that the last
InitProducerId or EndTxn gave to each.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from broker.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from broker.wire.messages.end_txn import EndTxnRequest
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.init_producer_id import InitProducerIdRequest
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.list_transactions import ListTransactionsRequest
from broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from broker.wire.schema import Message
from tests.golden.batches import TIMESTAMP
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create
from tests.support.raw_transactions import batch_of

TRANSACTION, GROUP = 1, 0
READ_COMMITTED = 1
LATEST, MAX_TIMESTAMP = -1, -3
MINUTE_MS = 60_000
ANOTHER = 987_654_321  # a producer id nobody has


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


INIT_TRANSACTIONAL = Case(
    [
        *begin("golden-it-a"),
        init("golden-it-a", 0),
        init("golden-it-a", -1),
        init("golden-it-a", 900_000),
        init("golden-it-a", 900_001),
        init("", 1000),
        init("golden-it-a", goes_on=0),
        init("golden-it-a", goes_on=-1),
        init("golden-it-a", goes_on=-2),
        init("golden-it-a", goes_on=-2, version=3),
        init("golden-it-a", goes_on=1),
        init("golden-it-a", goes_on=0, another=True),
        init("golden-it-a", goes_on=0, another=True, version=3),
        init("golden-it-new", goes_on=0),
        init("golden-it-new-too", goes_on=0, version=3),
        init("golden-it-a", version=0),
        init("golden-it-a", version=2),
    ]
)

ADD_PARTITIONS = Case(
    [
        create("golden-ap-t", partitions=2),
        *begin("golden-ap-a"),
        add("golden-ap-a", ("golden-ap-t", [0, 7]), ("golden-ap-missing", [0])),
        add("golden-ap-a", ("golden-ap-t", [0, 7]), ("golden-ap-missing", [0]), version=0),
        add("golden-ap-a", ("golden-ap-t", [0, 7]), ("golden-ap-missing", [0]), version=4),
        add("golden-ap-a", ("golden-ap-t", [0, 7]), ("golden-ap-missing", [0]), version=5),
        add("golden-ap-a", ("golden-ap-t", [0]), epoch=1),
        add("golden-ap-a", ("golden-ap-t", [0]), epoch=1, version=1),
        add("golden-ap-a", ("golden-ap-t", [0]), epoch=1, version=4),
        add("golden-ap-a", ("golden-ap-t", [0]), another=True),
        add("golden-ap-a", ("golden-ap-t", [0]), another=True, version=5),
        add("golden-ap-none", ("golden-ap-t", [0])),
        add("golden-ap-none", ("golden-ap-t", [0]), version=0),
        add("golden-ap-none", ("golden-ap-t", [0]), version=4),
        add("", ("golden-ap-t", [0])),
        add("golden-ap-a", ("golden-ap-t", [0]), version=4, verify_only=True),
        add("golden-ap-a", ("golden-ap-t", [0]), version=5, verify_only=True),
        add("golden-ap-a", ("golden-ap-t", [1, 0]), version=0),
        add("golden-ap-a", ("golden-ap-t", [0]), version=5, verify_only=True),
        add("golden-ap-a", ("golden-ap-t", [0, 1]), version=4, verify_only=True),
        add("golden-ap-a", ("golden-ap-t", [1, 0])),
        add("golden-ap-a"),
        add("golden-ap-a", ("__consumer_offsets", [0])),
        add("golden-ap-a", ("__transaction_state", [0])),
    ]
)

END_TXN = Case(
    [
        create("golden-et-t"),
        *begin("golden-et-a", "golden-et-b"),
        end("golden-et-none", commit=True),
        end("golden-et-none", commit=False, version=3),
        end("", commit=True),
        end("golden-et-a", commit=True, epoch=1),
        end("golden-et-a", commit=True, epoch=1, version=1),
        end("golden-et-a", commit=True, epoch=1, version=2),
        end("golden-et-a", commit=True, another=True),
        end("golden-et-a", commit=True, another=True, version=4),
        end("golden-et-a", commit=True, version=4),
        end("golden-et-a", commit=False, version=4),
        end("golden-et-a", commit=True),
        end("golden-et-a", commit=False),
        settled("golden-et-a"),
        end("golden-et-a", commit=False),
        settled("golden-et-a"),
        end("golden-et-a", commit=False, epoch=-1),
        end("golden-et-a", commit=True, epoch=-1),
        end("golden-et-a", commit=False, epoch=-2),
        end("golden-et-a", commit=True),
        # A transaction of version 1.
        add("golden-et-b", ("golden-et-t", [0]), is_setup=True),
        end("golden-et-b", commit=True, version=4),
        settled("golden-et-b"),
        end("golden-et-b", commit=True, version=4),
        end("golden-et-b", commit=False, version=4),
        end("golden-et-b", commit=True, version=0),
        end("golden-et-b", commit=True),
        add("golden-et-b", ("golden-et-t", [0]), is_setup=True),
        end("golden-et-b", commit=False, version=4),
        settled("golden-et-b"),
        end("golden-et-b", commit=False, version=4),
        end("golden-et-b", commit=True, version=4),
        # And of version 2.
        produce("golden-et-a", "golden-et-t", is_setup=True),
        end("golden-et-a", commit=True),
        settled("golden-et-a"),
        end("golden-et-a", commit=True, epoch=-1),
        end("golden-et-a", commit=False, epoch=-1),
        end("golden-et-a", commit=True),
    ]
)

PRODUCE_TRANSACTIONAL = Case(
    [
        create("golden-pt-t", partitions=2),
        *begin("golden-pt-a"),
        produce("golden-pt-a", "golden-pt-t", transactional_id=None),
        produce("golden-pt-a", "golden-pt-t", transactional_id=None, version=9),
        produce("golden-pt-a", "golden-pt-t", version=9),
        produce("golden-pt-a", "golden-pt-t", version=11),
        produce("golden-pt-a", "golden-pt-t", epoch=1, version=9),
        produce("golden-pt-a", "golden-pt-t", epoch=1, version=11),
        produce("golden-pt-a", "golden-pt-t", epoch=1),
        produce("golden-pt-a", "golden-pt-t", another=True, version=11),
        produce("golden-pt-a", "golden-pt-t", another=True),
        produce("golden-pt-none", "golden-pt-t", version=11),
        produce("golden-pt-none", "golden-pt-t"),
        produce("golden-pt-a", "golden-pt-t", sequence=5),
        produce("golden-pt-a", "golden-pt-t"),
        produce("golden-pt-a", "golden-pt-t"),
        produce("golden-pt-a", "golden-pt-t", sequence=2, plain=True),
        produce("golden-pt-a", "golden-pt-t", sequence=2, plain=True, transactional_id=None),
        produce("golden-pt-a", "golden-pt-t", sequence=2, version=9),
        produce("golden-pt-a", "golden-pt-t", sequence=9),
        produce("golden-pt-a", "golden-pt-missing"),
        end("golden-pt-a", commit=True),
        settled("golden-pt-a"),
        produce("golden-pt-a", "golden-pt-t", epoch=-1, sequence=4),
        produce("golden-pt-a", "golden-pt-t", epoch=-1, sequence=4, version=11),
        produce("golden-pt-a", "golden-pt-t", sequence=4),
        # A plain batch of a producer without an open transaction.
        produce("golden-pt-a", "golden-pt-t", partition=1, plain=True),
    ],
    differs_in={
        16: ("log_append_time_ms", "none in CreateTime; Kafka gives a duplicate's own time"),
    },
)


FENCED = Case(
    [
        create("golden-fe-t"),
        *begin("golden-fe-a", "golden-fe-b"),
        produce("golden-fe-a", "golden-fe-t", is_setup=True),
        init("golden-fe-a", is_setup=True),
        Step(DescribeTransactionsRequest(["golden-fe-a"])),
        produce("golden-fe-a", "golden-fe-t", epoch=-2, sequence=2),
        produce("golden-fe-a", "golden-fe-t", epoch=-1),
        produce("golden-fe-a", "golden-fe-t", epoch=-2, sequence=2, version=11),
        end("golden-fe-a", commit=True, epoch=-2),
        end("golden-fe-a", commit=True, epoch=-1),
        end("golden-fe-a", commit=False, epoch=-2, version=4),
        add("golden-fe-a", ("golden-fe-t", [0]), epoch=-2),
        init("golden-fe-a", goes_on=-2),
        init("golden-fe-a", goes_on=-1),
        # A producer that goes on in the middle of its own transaction.
        add("golden-fe-b", ("golden-fe-t", [0]), is_setup=True),
        init("golden-fe-b", goes_on=0, is_setup=True),
        Step(DescribeTransactionsRequest(["golden-fe-b"])),
    ]
)


def timed_out(name: str) -> Step:
    """Repeated until its coordinator has aborted it."""
    return settled(name)


TIMED_OUT = Case(
    [
        create("golden-to-t"),
        *begin("golden-to-a", "golden-to-b", "golden-to-c"),
        init("golden-to-a", 500, is_setup=True),
        init("golden-to-b", 500, is_setup=True),
        init("golden-to-c", 500, is_setup=True),
        produce("golden-to-a", "golden-to-t", is_setup=True),
        add("golden-to-b", ("golden-to-t", [0]), is_setup=True),
        produce("golden-to-b", "golden-to-t", version=11, is_setup=True),
        produce("golden-to-c", "golden-to-t", is_setup=True),
        timed_out("golden-to-a"),
        timed_out("golden-to-b"),
        timed_out("golden-to-c"),
        Step(DescribeTransactionsRequest(["golden-to-a", "golden-to-b", "golden-to-c"])),
        # A client of version 2.
        produce("golden-to-a", "golden-to-t", sequence=2),
        end("golden-to-a", commit=True),
        end("golden-to-a", commit=False),
        produce("golden-to-a", "golden-to-t"),
        end("golden-to-a", commit=True, is_setup=True),
        # Of version 1.
        produce("golden-to-b", "golden-to-t", sequence=2, version=11),
        add("golden-to-b", ("golden-to-t", [0])),
        end("golden-to-b", commit=True, version=4),
        end("golden-to-b", commit=False, version=4),
        end("golden-to-b", commit=True, version=1),
        # One that goes on.
        init("golden-to-c", goes_on=0),
        init("golden-to-c", goes_on=-1),
    ]
)


# What Kafka lets pass although no producer in order would send it.
NOT_IN_ORDER = Case(
    [
        create("golden-no-t"),
        *begin("golden-no-a", "golden-no-b", "golden-no-c"),
        # The epoch before, in the middle of a transaction of the current one.
        init("golden-no-a", goes_on=0, is_setup=True),
        produce("golden-no-a", "golden-no-t", is_setup=True),
        init("golden-no-a", goes_on=-1),
        # The epoch before, after a transaction of the current one.
        init("golden-no-b", goes_on=0, is_setup=True),
        add("golden-no-b", ("golden-no-t", [0]), is_setup=True),
        end("golden-no-b", commit=True, version=4, is_setup=True),
        settled("golden-no-b"),
        end("golden-no-b", commit=True, epoch=-1),
        init("golden-no-b", goes_on=-1),
        # A batch that is refused, and one that is there already.
        produce("golden-no-c", "golden-no-t", sequence=5),
        Step(DescribeTransactionsRequest(["golden-no-c"])),
        produce("golden-no-c", "golden-no-t", is_setup=True),
        end("golden-no-c", commit=True, version=4, is_setup=True),
        settled("golden-no-c"),
        produce("golden-no-c", "golden-no-t", is_setup=True),
        Step(DescribeTransactionsRequest(["golden-no-c"])),
    ],
    differs={
        9: "PRODUCER_FENCED at once; Kafka aborts the transaction first",
        14: "PRODUCER_FENCED: the epoch before has ended nothing",
        15: "likewise: it has had the answer since, or could not have begun a transaction",
        17: "Empty: a batch that is refused does not join a transaction",
        22: "CompleteCommit: nor does one that is there already",
    },
)


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


TXN_OFFSET_COMMIT = Case(
    [
        create("golden-oc-t"),
        *begin("golden-oc-a"),
        Step(
            FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["golden-oc-g"]), is_setup=True
        ),
        # The coordinator of groups loads too.
        Step(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("golden-oc-g")]), 9, is_setup=True),
        add_offsets("golden-oc-a", "golden-oc-g", epoch=1),
        add_offsets("golden-oc-a", "golden-oc-g", epoch=1, version=1),
        add_offsets("golden-oc-a", "golden-oc-g", another=True),
        add_offsets("golden-oc-none", "golden-oc-g"),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", version=3),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", version=4),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", epoch=1),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", epoch=1, version=3),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", another=True),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", another=True, version=3),
        commit_offset("golden-oc-none", "golden-oc-g", "golden-oc-t"),
        commit_offset("golden-oc-a", "", "golden-oc-t"),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", generation=4),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", member="nobody"),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", generation=4, member="nobody"),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-missing"),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", partition=9),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", metadata="x" * 4097),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t"),
        offset_of("golden-oc-g", "golden-oc-t", stable=True),
        offset_of("golden-oc-g", "golden-oc-t", stable=False),
        end("golden-oc-a", commit=True, is_setup=True),
        settled("golden-oc-a"),
        offset_of("golden-oc-g", "golden-oc-t", stable=True),
        add_offsets("golden-oc-a", "golden-oc-g", version=0),
        commit_offset("golden-oc-a", "golden-oc-g", "golden-oc-t", version=0),
        end("golden-oc-a", commit=False, version=4, is_setup=True),
        settled("golden-oc-a"),
        offset_of("golden-oc-g", "golden-oc-t", stable=True),
    ]
)


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


LIST_TRANSACTIONS = Case(
    [
        create("golden-lt-t", partitions=2),
        *begin("golden-lt-a", "golden-lt-b"),
        add("golden-lt-b", ("golden-lt-t", [0, 1]), is_setup=True),
        listing(),
        listing("golden-lt-a"),
        listing("lt"),
        listing(states=["Ongoing"]),
        listing(states=["Empty", "Nonsense", "ongoing"]),
        listing(states=["Nonsense"]),
        listing(states=["PrepareEpochFence", "Dead"]),
        listing(another=True),
        listing(duration_ms=MINUTE_MS),
        listing(states=["Ongoing"], duration_ms=0),
        listing("("),
        listing("golden-lt-[ab"),
        listing("(?i)GOLDEN-LT-A"),
        Step(one_listed),
        Step(DescribeTransactionsRequest(["golden-lt-a", "golden-lt-b", "golden-lt-none", ""])),
        Step(DescribeTransactionsRequest([])),
    ]
)


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


MARKERS = Case(
    [
        create("golden-wm-t", partitions=2),
        *begin("golden-wm-a", "golden-wm-a"),
        produce("golden-wm-a", "golden-wm-t", is_setup=True),
        describe_producers(("golden-wm-missing", [0]), ("golden-wm-t", [0, 9])),
        marker("golden-wm-a", ("golden-wm-missing", [0]), ("golden-wm-t", [9]), commit=False),
        marker("golden-wm-a", ("golden-wm-t", [0]), commit=False, epoch=-1),
        describe_producers(("golden-wm-t", [0])),
        marker("golden-wm-a", ("golden-wm-t", [0]), commit=False),
        describe_producers(("golden-wm-t", [0])),
        marker("golden-wm-a", ("golden-wm-t", [0]), commit=False, version=2),
        offsets("golden-wm-t", LATEST),
        marker("golden-wm-a", ("golden-wm-t", [1]), commit=True, epoch=1, version=2),
        describe_producers(("golden-wm-t", [1])),
    ],
    differs={
        11: "the time of the last batch, and no number: an administrator's marker has none",
        13: "no second marker: nothing is open",
        15: "likewise",
    },
)

READ_COMMITTED_END = Case(
    [
        create("golden-rc-t"),
        *begin("golden-rc-a", "golden-rc-b"),
        produce("golden-rc-a", "golden-rc-t", is_setup=True),
        produce("golden-rc-b", "golden-rc-t", is_setup=True),
        end("golden-rc-b", commit=True, is_setup=True),
        settled("golden-rc-b"),
        fetch("golden-rc-t"),
        fetch("golden-rc-t", 3),
        fetch("golden-rc-t", 6),
        offsets("golden-rc-t", LATEST),
        offsets("golden-rc-t", LATEST, level=0),
        offsets("golden-rc-t", TIMESTAMP),
        offsets("golden-rc-t", TIMESTAMP, level=0),
        offsets("golden-rc-t", MAX_TIMESTAMP),
        offsets("golden-rc-t", TIMESTAMP + 1, level=0),
        end("golden-rc-a", commit=False, is_setup=True),
        settled("golden-rc-a"),
        offsets("golden-rc-t", LATEST),
        offsets("golden-rc-t", TIMESTAMP),
        offsets("golden-rc-t", MAX_TIMESTAMP),
        offsets("golden-rc-t", MAX_TIMESTAMP, level=0),
        offsets("golden-rc-t", TIMESTAMP + 1),
    ],
    differs={11: "tells where the log begins and ends; Kafka does not"},
)

# Of now: Kafka begins a new segment with a marker that is a week younger than the first record, and
# a Fetch reads one segment.
READ_COMMITTED_BATCHES = Case(
    [
        create("golden-rb-t"),
        *begin("golden-rb-a", "golden-rb-b"),
        produce("golden-rb-a", "golden-rb-t", timestamp=None, is_setup=True),
        produce("golden-rb-b", "golden-rb-t", timestamp=None, is_setup=True),
        end("golden-rb-b", commit=True, is_setup=True),
        settled("golden-rb-b"),
        fetch("golden-rb-t"),
        fetch("golden-rb-t", level=0),
        end("golden-rb-a", commit=False, is_setup=True),
        settled("golden-rb-a"),
        fetch("golden-rb-t"),
        fetch("golden-rb-t", 1),
        fetch("golden-rb-t", 4),
        fetch("golden-rb-t", 5),
        fetch("golden-rb-t", 6),
        fetch("golden-rb-t", level=0),
    ]
)
