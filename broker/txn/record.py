"""The stored form of a transactional id, its encoding, and its view.

The record decides: once PrepareCommit or PrepareAbort is stored, the transaction has ended that
way, and any worker that reads the record can complete it. Fields may be added with a default; to
change the meaning of one, raise `FORMAT`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from moldau.broker.wire.schema import NO_UUID

# The numbers of transactions have 31 bits, begin with 1, and are compared as serial numbers
# (RFC 1982). A producer at 1,000 transactions a second wraps after 25 days. Two numbers that are
# compared belong to transactions of one transactional id that are near each other, so half the
# circle is plenty.
NO_NUMBER = 0
"""The number before the first transaction. Every other number is after it."""
LAST = 2**31 - 1
_HALF = 2**30


def next_number(number: int) -> int:
    return 1 if number == LAST else number + 1


def is_after(a: int, b: int) -> bool:
    """True if transaction `a` began after transaction `b`.

    The circle has 2^31 - 1 numbers, as 0 is not one of them: the distance from b to a is at most
    half.
    """
    if b == NO_NUMBER:
        return a != NO_NUMBER
    if a == NO_NUMBER:
        return False
    return 0 < (a - b) % LAST < _HALF


FORMAT = 1
GROUP_OFFSETS = "__consumer_offsets"
"""The topic of a `TxnPartition` that stands for all groups of a slot."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_EPOCH = 32_766
"""The highest epoch that a producer gets. 32,767 only fences it; then it gets a new producer id."""
NOT_STARTED = -1


class TxnPartition(NamedTuple):
    """A partition that gets a marker when the transaction ends. A topic that is deleted and created
    again has other partitions."""

    topic: str
    topic_id: bytes
    """16 bytes."""
    partition: int


def group_offsets_partition(slot: int) -> TxnPartition:
    """Return the partition that stands for all groups of a slot."""
    return TxnPartition(GROUP_OFFSETS, NO_UUID, slot)


class TxnState(StrEnum):
    """Kafka's names, as ListTransactions shows them. README.md lists the answers in each state."""

    EMPTY = "Empty"
    """A producer has the id, but has not begun a transaction."""
    ONGOING = "Ongoing"
    """A transaction is open and has partitions."""
    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; its markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; its markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The transaction is committed, and every partition has its marker."""
    COMPLETE_ABORT = "CompleteAbort"
    """The transaction is aborted, and every partition has its marker."""

    @property
    def is_ending(self) -> bool:
        return self is TxnState.PREPARE_COMMIT or self is TxnState.PREPARE_ABORT

    @property
    def is_committed(self) -> bool:
        return self is TxnState.PREPARE_COMMIT or self is TxnState.COMPLETE_COMMIT

    @property
    def is_aborted(self) -> bool:
        return self is TxnState.PREPARE_ABORT or self is TxnState.COMPLETE_ABORT


class TxnRecord(Struct, frozen=True):
    transactional_id: str
    revision: int
    """Grows with every write of the id, and names its `Persist`."""
    state: TxnState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    """Epoch milliseconds of the last change. It decides when an unused id is removed."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that the same producer had before, under `previous_producer_id`. It may repeat its
    last InitProducerId or EndTxn with it, as the answer may have been lost. -1 if no producer
    may."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """In Prepare*, the id that takes over with epoch 0 at Complete*, as the epochs are
    exhausted."""
    started_ms: int = NOT_STARTED
    """When the first partition was added, in epoch milliseconds."""
    number: int = NO_NUMBER
    """The number of the open transaction, or of the last one."""
    client_version: int = 0
    """2 if a client of transaction version 2 (KIP-890) added to the transaction or ended it."""
    partitions: tuple[TxnPartition, ...] = msgspec.field(default=(), name="places")
    """The partitions of a transaction that is Ongoing or Prepare*."""
    must_abort: bool = False
    """The store may have lost records of the open transaction: it cannot be committed."""
    format: int = FORMAT


class UnknownRecordFormat(ValueError):
    """The record was written by a newer version."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TxnRecord)


def encode(record: TxnRecord) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> TxnRecord:
    """Raises `UnknownRecordFormat`, or `msgspec.DecodeError` for anything but a record."""
    record = _decoder.decode(data)
    if record.format != FORMAT:
        raise UnknownRecordFormat(f"transaction of format {record.format}, known is {FORMAT}")
    return record


class TxnView(Struct, frozen=True):
    """The view of an id for DescribeTransactions, ListTransactions and the command line."""

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
