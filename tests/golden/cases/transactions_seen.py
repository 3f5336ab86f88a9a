"""Transactions: offsets of groups, administration, and what readers get of them."""

from __future__ import annotations

from moldau.broker.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.golden.batches import TIMESTAMP
from tests.golden.harness import Case, Step
from tests.golden.steps import create
from tests.golden.transaction_steps import (
    GROUP,
    LATEST,
    MAX_TIMESTAMP,
    MINUTE_MS,
    add,
    add_offsets,
    begin,
    commit_offset,
    describe_producers,
    end,
    fetch,
    listing,
    marker,
    offset_of,
    offsets,
    one_listed,
    produce,
    settled,
)

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
