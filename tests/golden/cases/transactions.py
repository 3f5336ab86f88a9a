"""Transactions: who is their producer, what takes part, how they end.

Each case has transactional ids of its own.
"""

from __future__ import annotations

from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from tests.golden.harness import Case, Step
from tests.golden.steps import create
from tests.golden.transaction_steps import add, begin, end, init, produce, settled

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
