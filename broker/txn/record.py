"""What is stored of a transactional id, and its encoding.

The record decides: once PrepareCommit or PrepareAbort is stored, the transaction has ended that
way, and whoever reads the record can do the rest. Fields may be added with a default; to change the
meaning of one, raise `FORMAT`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from moldau.broker.txn.transaction_numbers import NO_NUMBER
from moldau.broker.wire.schema import NO_UUID

FORMAT = 1
GROUP_OFFSETS = "__consumer_offsets"
"""The topic of a `TxnPartition` that stands for all groups of a slot."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_EPOCH = 32_766
"""The highest epoch that a producer gets. 32,767 only fences it; then a new producer id follows."""
NOT_STARTED = -1


class TxnPartition(NamedTuple):
    """Where a transaction gets a marker when it ends. A topic that was deleted and created again is
    another partition."""

    topic: str
    topic_id: bytes
    """16 bytes."""
    partition: int


def group_offsets_partition(slot: int) -> TxnPartition:
    """The partition of all groups of a slot."""
    return TxnPartition(GROUP_OFFSETS, NO_UUID, slot)


class TxnState(StrEnum):
    """Kafka's names, as ListTransactions shows them. README.md says what each one answers."""

    EMPTY = "Empty"
    """A producer has the id, and no transaction since."""
    ONGOING = "Ongoing"
    """A transaction is open and has partitions."""
    PREPARE_COMMIT = "PrepareCommit"
    """It is committed; markers are on their way."""
    PREPARE_ABORT = "PrepareAbort"
    """It is aborted; markers are on their way."""
    COMPLETE_COMMIT = "CompleteCommit"
    """It is committed, and every partition has its marker."""
    COMPLETE_ABORT = "CompleteAbort"
    """It is aborted, and every partition has its marker."""

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
    """Grows with every write of the id; the token of its `Persist`."""
    state: TxnState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    """Epoch milliseconds of the last change. Unused ids are removed by it."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """With `previous_producer_id`: what the same producer had before. It may repeat its last
    InitProducerId or EndTxn with it, as the answer may have been lost; -1: no producer may."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """In Prepare*: takes over with epoch 0 at Complete*, as the epochs are exhausted."""
    started_ms: int = NOT_STARTED
    """Epoch milliseconds: when the first partition was added."""
    number: int = NO_NUMBER
    """Of the transaction that is open, or was the last one."""
    client_version: int = 0
    """2: a client of transaction version 2 (KIP-890) added to it or ended it."""
    partitions: tuple[TxnPartition, ...] = msgspec.field(default=(), name="places")
    """Of a transaction that is Ongoing or Prepare*."""
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
