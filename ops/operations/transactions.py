"""Transactions of a running broker, as their coordinators know them. No printing.

What partitions know of them is open_transactions.py's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.ops.client import LATEST, TRANSACTION, Cluster, Node, TopicPartition, refusal
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


class Listed(NamedTuple):
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: Node


def list_transactions(cluster: Cluster, wanted: ListTransactionsRequest) -> list[Listed]:
    """Of all brokers, by id: each lists what it coordinates."""
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
    """Of those that still exist, from the coordinators that listed them."""
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


# --- as `--json` prints them ---


def listed_documents(cluster: Cluster, wanted: ListTransactionsRequest) -> list[dict[str, Any]]:
    listed = list_transactions(cluster, wanted)
    if wanted.duration_filter >= 0:  # brokers also list what has ended, or never began
        listed = [one for one in listed if one.state in ACTIVE]
    active = [one for one in listed if one.state in ACTIVE]
    began = {one.transactional_id: one for one in details_of(cluster, active)}
    return [
        {
            "transactional_id": one.transactional_id,
            "state": one.state,
            "producer_id": one.producer_id,
            "coordinator": _node_document(one.coordinator),
            **_times(began.get(one.transactional_id)),
        }
        for one in listed
    ]


def described_document(cluster: Cluster, transactional_id: str) -> dict[str, Any]:
    """Raises ClientError."""
    found = find_transaction(cluster, transactional_id)
    return {
        "transactional_id": transactional_id,
        "state": found.transaction_state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.transaction_timeout_ms,
        **_times(found),
        "coordinator": _node_document(cluster.coordinator(transactional_id, TRANSACTION)),
        "partitions": _partitions(cluster, found),
    }


def places_of(found: TransactionState) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions
    )


def _partitions(cluster: Cluster, found: TransactionState) -> list[dict[str, Any]]:
    """Nothing is known of a partition that clients do not see: offsets of groups, deleted ones."""
    places = places_of(found)
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    stable = cluster.list_offsets(dict.fromkeys(places, LATEST), READ_COMMITTED)
    begins = {
        one.place: one.start_offset
        for one in open_transactions(cluster, list(ends))
        if one.producer_id == found.producer_id
    }
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "open_from": begins.get(place),
            "last_stable_offset": stable.get(place),
            "end_offset": ends.get(place),
        }
        for place in places
    ]


def _times(found: TransactionState | None) -> dict[str, int | None]:
    """Of an open one: by the coordinator's clock, and since then by this machine's."""
    if found is None or found.transaction_state not in ACTIVE:
        return {"started_ms": None, "running_ms": None}
    running = max(time.time_ns() // 1_000_000 - found.transaction_start_time_ms, 0)
    return {"started_ms": found.transaction_start_time_ms, "running_ms": running}


def _node_document(node: Node) -> dict[str, Any]:
    return {"id": node.node_id, "address": node.address}
