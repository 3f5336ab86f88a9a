"""Transactions of a running broker, as their coordinators know them.

Partitions know them as open_transactions.py has it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.ops.client import (
    LATEST,
    TRANSACTION,
    Backoff,
    ClientError,
    Cluster,
    Node,
    TopicPartition,
    refusal,
)
from moldau.ops.client.names import Coordinator
from moldau.ops.operations.open_transactions import open_transactions

ONGOING = "Ongoing"
STATES = (
    "Empty",
    ONGOING,
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
ACTIVE = frozenset({ONGOING, "PrepareCommit", "PrepareAbort"})  # perhaps open in partitions
READ_COMMITTED = 1
IDS_OF_A_REQUEST = 1000
ABORT_PATIENCE_S = 15.0  # for markers to be written
AGAIN = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class Listed(NamedTuple):
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: Node


def list_transactions(cluster: Cluster, wanted: ListTransactionsRequest) -> list[Listed]:
    """The ids of all brokers, sorted: each lists those it coordinates."""
    found: dict[str, Listed] = {}
    for node in cluster.nodes():
        answer = cluster.call(wanted, node)
        if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise refusal(f"pattern {wanted.transactional_id_pattern}", answer.error_code)
        if answer.error_code:
            raise refusal(f"transactions of broker {node.node_id}", answer.error_code)
        for one in answer.transaction_states:
            listed = Listed(one.transactional_id, one.transaction_state, one.producer_id, node)
            found[listed.transactional_id] = listed
    return [found[name] for name in sorted(found)]


def details_of(cluster: Cluster, listed: Sequence[Listed]) -> list[TransactionState]:
    """Describe those that still exist; the coordinators that listed them are asked."""
    ids: dict[Node, list[str]] = {}
    for one in listed:
        ids.setdefault(one.coordinator, []).append(one.transactional_id)
    found: list[TransactionState] = []
    for node, names in ids.items():
        for at in range(0, len(names), IDS_OF_A_REQUEST):
            request = DescribeTransactionsRequest(names[at : at + IDS_OF_A_REQUEST])
            answer = cluster.call(request, node)
            found += [one for one in answer.transaction_states if not one.error_code]
    return found


def find_transaction(cluster: Cluster, transactional_id: str) -> TransactionState:
    """Raises ClientError, also when there is no such id."""
    answer = cluster.call_coordinator(
        transactional_id,
        DescribeTransactionsRequest([transactional_id]),
        lambda answer: int(answer.transaction_states[0].error_code),
        TRANSACTION,
    )
    found: TransactionState = answer.transaction_states[0]
    if found.error_code:
        raise refusal(f"transactional id {transactional_id}", found.error_code)
    return found


# --- results ---


class TransactionListing(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    coordinator: Coordinator
    started_ms: int | None  # None: it is not open
    running_ms: int | None


class TransactionPartition(msgspec.Struct, frozen=True):
    """None: clients do not see the partition (offsets of groups), or it was deleted."""

    topic: str
    partition: int
    open_from: int | None
    last_stable_offset: int | None
    end_offset: int | None


class TransactionDescription(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    running_ms: int | None
    coordinator: Coordinator
    partitions: list[TransactionPartition]


def list_with_times(cluster: Cluster, wanted: ListTransactionsRequest) -> list[TransactionListing]:
    listed = list_transactions(cluster, wanted)
    if wanted.duration_filter >= 0:  # brokers also list ids without an open transaction
        listed = [one for one in listed if one.state in ACTIVE]
    active = [one for one in listed if one.state in ACTIVE]
    began = {one.transactional_id: one for one in details_of(cluster, active)}
    return [
        TransactionListing(
            one.transactional_id,
            one.state,
            one.producer_id,
            Coordinator.of(one.coordinator),
            *_times(began.get(one.transactional_id)),
        )
        for one in listed
    ]


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Raises ClientError."""
    found = find_transaction(cluster, transactional_id)
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        *_times(found),
        Coordinator.of(cluster.coordinator(transactional_id, TRANSACTION)),
        _partitions(cluster, found),
    )


def places_of(found: TransactionState) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions
    )


def _partitions(cluster: Cluster, found: TransactionState) -> list[TransactionPartition]:
    places = places_of(found)
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    stable = cluster.list_offsets(dict.fromkeys(places, LATEST), READ_COMMITTED)
    begins = {
        one.place: one.start_offset
        for one in open_transactions(cluster, list(ends))
        if one.producer_id == found.producer_id
    }
    return [
        TransactionPartition(*place, begins.get(place), stable.get(place), ends.get(place))
        for place in places
    ]


def _times(found: TransactionState | None) -> tuple[int | None, int | None]:
    """When it began by the coordinator's clock, and how long ago that is by this machine's."""
    if found is None or found.transaction_state not in ACTIVE:
        return None, None
    began = found.transaction_start_time_ms
    return began, max(time.time_ns() // 1_000_000 - began, 0)


# --- aborting ---


class AbortedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int


def find_ongoing(cluster: Cluster, transactional_id: str) -> TransactionState:
    """Raises ClientError if there is nothing to abort."""
    found = find_transaction(cluster, transactional_id)
    if found.transaction_state == ONGOING:
        return found
    what = f"transactional id {transactional_id}: it is {found.transaction_state}"
    if found.transaction_state.startswith("Prepare"):
        raise ClientError(
            f"{what}, which is decided and ends by itself; `moldau transactions describe` shows "
            "where it is still open, `moldau status` whether a worker or the store is down"
        )
    raise ClientError(
        f"{what}, no transaction is open; `moldau transactions find-hanging` shows those that are "
        "open in a partition without their coordinator's knowledge"
    )


def abort_transaction(cluster: Cluster, seen: TransactionState) -> AbortedTransaction:
    """Abort as a new producer with this id would, which fences the old one. Raises ClientError."""
    transactional_id = seen.transactional_id
    now = find_ongoing(cluster, transactional_id)  # the question may have been open for a while
    if now.transaction_start_time_ms != seen.transaction_start_time_ms:
        raise ClientError(
            f"transactional id {transactional_id}: the transaction has ended meanwhile and "
            "another one has begun, to which nothing was done"
        )
    # With the timeout it has: the coordinator would keep another one.
    request = InitProducerIdRequest(transactional_id, now.transaction_timeout_ms)
    patience = Backoff(ABORT_PATIENCE_S)
    while True:
        answer = cluster.call_coordinator(
            transactional_id, request, lambda answer: int(answer.error_code), TRANSACTION
        )
        if answer.error_code not in AGAIN or not patience.wait():
            break
    if answer.error_code:
        raise refusal(f"transactional id {transactional_id}", answer.error_code)
    return AbortedTransaction(transactional_id, answer.producer_id, answer.producer_epoch)
