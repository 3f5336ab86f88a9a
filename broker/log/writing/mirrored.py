"""Batches that are mirrored from another cluster, and keep their offsets. Pure: no I/O.

A chunk is one or more whole batches as the other cluster has them, and the offset at which this log
has to end before it: it is appended there or refused. So nothing can come between two chunks, and
none is appended twice or left out, whoever sends them and however often.

Offsets may be missing in front of each batch: the log of the other cluster begins above 0, or was
compacted. The entry begins where the log ended all the same, so that entries stay dense and a plain
XADD stays a compare-and-append; an entry covers every offset from its id to the end of its last
batch. Readers look for the first batch that ends after an offset, and find what follows the hole.

What a broker sets is set: the leader epoch is that of this log. Everything else stays byte for
byte, and is folded as if it had been appended here: producers, transactions, markers.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.state.log_state import LogState, TransactionStep
from moldau.broker.log.writing.append import Append
from moldau.broker.wire.batch import (
    CONTROL,
    LEADER_EPOCH_AT,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatch,
    checksum,
    headers,
)
from moldau.broker.wire.control import read_end_marker

if TYPE_CHECKING:
    from moldau.broker.log.writing.append_queue import InFlightEntry

MAGIC = 2
# Scripts of the store count in doubles, exact up to 2^53; reservations lie beyond the end.
MAX_END = 1 << 52
_INT32 = Struct(">i")


class MirroredChunk(Append):
    """`batch` holds all of its batches; `header` stands for them in the queue, which sees a control
    batch without a producer."""

    __slots__ = ("at", "batches")

    def __init__(self, records: memoryview | bytearray, at: int) -> None:
        """`at`: where the log ends before it. Raises KafkaError."""
        self.at = at
        self.batches = admit_mirrored(records, at)
        first = self.batches[0]
        header = first._replace(
            attributes=CONTROL,
            producer_id=NO_PRODUCER_ID,
            base_sequence=-1,
            max_timestamp=max(header.max_timestamp for header in self.batches),
        )
        super().__init__(records, header, replicas=0)

    def refusal(self, state: LogState) -> KafkaError | None:
        """Why it cannot be appended to the log as it is now."""
        if state.end == self.at:
            return None
        text = f"the log ends at offset {state.end}, and not at {self.at}"
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)

    def add_to(self, entry: InFlightEntry, state: LogState) -> None:
        """Make it the contents of an entry that is empty."""
        at, batch = 0, self.batch
        for header in self.batches:
            _INT32.pack_into(batch, at + LEADER_EPOCH_AT, entry.epoch)
            if header.producer_id != NO_PRODUCER_ID:
                self._add_producer(entry, state, header, at)
            if header.max_timestamp > entry.max_timestamp:
                entry.max_timestamp = header.max_timestamp
                entry.max_timestamp_base = header.base_offset
            at += header.size
        self.base_offset = self.at
        entry.end = self.batches[-1].next_offset
        entry.size = len(batch)
        entry.parts.append(batch)
        entry.appends.append(self)

    def _add_producer(
        self, entry: InFlightEntry, state: LogState, header: BatchHeader, at: int
    ) -> None:
        producer_id, offset = header.producer_id, header.base_offset
        if header.attributes & CONTROL:
            end = read_end_marker(self.batch, at)
            producer = state.advance_by_marker(header, end, offset, entry.producers)
            entry.steps += (TransactionStep(producer_id, offset, at, end),)
        elif header.base_sequence >= 0:
            producer = state.advance(header, offset, entry.producers)
            if header.attributes & TRANSACTIONAL and producer.open_from == offset:
                entry.steps += (TransactionStep(producer_id, offset, at),)
        else:
            return
        entry.producers[producer_id] = producer


def admit_mirrored(records: memoryview | bytearray, at: int) -> list[BatchHeader]:
    """Check the batches of a chunk: whole, in order, from `at` on. Raises KafkaError.

    Their records are not looked at: another broker has, and every client could read them there.
    """
    found: list[BatchHeader] = []
    position, following = 0, at
    try:
        for header in headers(records):
            if header.magic != MAGIC:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                    f"record format {header.magic}, not {MAGIC}, at offset {header.base_offset}",
                )
            if header.base_offset < following or header.last_offset_delta < 0:
                text = f"a batch from offset {header.base_offset} on, after offset {following - 1}"
                raise KafkaError(ErrorCode.INVALID_RECORD, text)
            if header.next_offset > MAX_END:
                text = f"a batch at offset {header.base_offset}: a log ends at {MAX_END} at most"
                raise KafkaError(ErrorCode.INVALID_RECORD, text)
            batch = memoryview(records)[position : position + header.size]
            if checksum(batch) != header.crc:
                text = f"the checksum of the batch at offset {header.base_offset} does not fit"
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
            if header.attributes & CONTROL:
                read_end_marker(batch)
            found.append(header)
            following = header.next_offset
            position += header.size
    except CorruptBatch as fault:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    if not found:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
    return found
