"""Transactions that hang: find them, and end them.

A transaction hangs when it is open in a partition and no coordinator knows that, so that no marker
will end it: read_committed consumers stop there, and compaction with them. Kafka brokers before
4.0 could get into this state (KIP-890); an administrator's marker ends it (KIP-664).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.ops.client import ClientError, Cluster, TopicPartition, refusal
from moldau.ops.operations.open_transactions import OpenTransaction, open_transactions
from moldau.ops.operations.transactions import ACTIVE, details_of, list_transactions, places_of

ADMINISTRATORS = 1  # the version without a transaction version, which is for coordinators


def find_hanging(cluster: Cluster, places: Collection[TopicPartition]) -> list[OpenTransaction]:
    """Transactions that hang in these partitions.

    Coordinators are asked after the partitions, and one of their transactions may have ended in
    between; a hanging one is open afterwards too.
    """
    found = open_transactions(cluster, places)
    known = transactional_ids(cluster, found)
    strays = [one for one in found if one not in known]
    still = {_identity(one) for one in open_transactions(cluster, {one.place for one in strays})}
    return [one for one in strays if _identity(one) in still]


def transactional_ids(
    cluster: Cluster, found: Sequence[OpenTransaction]
) -> dict[OpenTransaction, str]:
    """The ids of transactions that a coordinator knows to be open in their partition."""
    if not found:
        return {}
    producers = sorted({one.producer_id for one in found})
    listed = list_transactions(cluster, ListTransactionsRequest(producer_id_filters=producers))
    active = [one for one in listed if one.state in ACTIVE]
    ids = {
        (one.producer_id, place): one.transactional_id
        for one in details_of(cluster, active)
        for place in places_of(one)
        if one.transaction_state in ACTIVE
    }
    return {
        one: ids[one.producer_id, one.place] for one in found if (one.producer_id, one.place) in ids
    }


def find_open(cluster: Cluster, place: TopicPartition, start_offset: int) -> OpenTransaction:
    """The transaction that is open from this offset on. Raises ClientError, also if it may not be
    ended here: its coordinator would write its own marker later, perhaps for a commit."""
    cluster.leader(place)  # raises if there is no such partition
    found = open_transactions(cluster, [place])
    for one in found:
        if one.start_offset == start_offset:
            break
    else:
        begins = ", ".join(str(one.start_offset) for one in found)
        raise ClientError(
            f"partition {place}: no transaction is open from offset {start_offset} on; "
            + (f"open ones begin at {begins}" if begins else "none is open there")
        )
    known = transactional_ids(cluster, [one])
    if one in known:
        raise ClientError(
            f"partition {place}: the transaction from offset {start_offset} on does not hang, it "
            f"is that of transactional id {known[one]}; end it with "
            f"`moldau transactions abort {known[one]}`"
        )
    return one


def write_abort_marker(cluster: Cluster, one: OpenTransaction) -> None:
    """Raises ClientError."""
    marker = WritableTxnMarker(
        one.producer_id,
        one.producer_epoch,
        False,
        [WritableTxnMarkerTopic(one.place.topic, [one.place.partition])],
        max(one.coordinator_epoch, 0),  # -1: none of the producer's transactions has ended there
    )
    leader = cluster.leader(one.place)
    answer = cluster.call(WriteTxnMarkersRequest([marker]), leader, ADMINISTRATORS)
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise refusal(f"partition {one.place}", code)


def _identity(one: OpenTransaction) -> tuple[TopicPartition, int, int]:
    return one.place, one.start_offset, one.producer_id
