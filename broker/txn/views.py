"""The view of a transactional id for DescribeTransactions, ListTransactions and the command
line."""

from __future__ import annotations

from msgspec import Struct

from moldau.broker.txn.record import TxnPartition, TxnRecord, TxnState


class TxnView(Struct, frozen=True):
    transactional_id: str
    state: TxnState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    """-1 if there was no transaction since InitProducerId."""
    number: int
    partitions: tuple[TxnPartition, ...]


def view(record: TxnRecord) -> TxnView:
    return TxnView(
        record.transactional_id,
        record.state,
        record.producer_id,
        record.producer_epoch,
        record.timeout_ms,
        record.started_ms,
        record.number,
        record.partitions,
    )
