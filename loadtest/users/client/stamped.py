"""Records that identify themselves, and the check of a partition as it is read.

Every value names its producer and the record's number among those of this producer in this
partition, and ends with a checksum of what precedes it:

    "MLDU", producer 8 bytes, number int64, due at int64 (us since 1970), filler, crc32 4 bytes

A producer that must not repeat a request of unknown outcome continues under a new name. So the
numbers of one name are complete and unique, whatever acks and idempotence are set to.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from moldau.broker.wire.batch import (
    CONTROL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    checksum,
    read_header,
    split_batches,
)
from moldau.broker.wire.records import Record, build_batch, read_records

MAGIC = b"MLDU"
_STAMP = struct.Struct(">4s8sqq")
_CRC = struct.Struct(">I")
MIN_VALUE_BYTES = _STAMP.size + _CRC.size
NAME_BYTES = 8
DECODED_LIMIT = 64 << 20
_POOL = os.urandom(1 << 15).hex().encode()  # compresses to about a half, as texts do


class Stamp(NamedTuple):
    producer: bytes
    number: int
    due_us: int


def new_name() -> bytes:
    return os.urandom(NAME_BYTES)


def stamped_value(stamp: Stamp, size: int) -> bytes:
    """A value of `size` bytes, at least of the smallest possible size."""
    filler = max(size - MIN_VALUE_BYTES, 0)
    at = stamp.number * 61 % (len(_POOL) // 2)
    body = _STAMP.pack(MAGIC, *stamp) + (_POOL[at : at + filler]).ljust(filler, b".")
    return body + _CRC.pack(zlib.crc32(body))


def read_stamp(value: bytes | None) -> Stamp | None:
    """None: damaged, or not a record of a load test."""
    if value is None or len(value) < MIN_VALUE_BYTES or value[:4] != MAGIC:
        return None
    if zlib.crc32(memoryview(value)[: -_CRC.size]) != _CRC.unpack_from(value, len(value) - 4)[0]:
        return None
    _, producer, number, due_us = _STAMP.unpack_from(value)
    return Stamp(producer, number, due_us)


class ProducerSequence(NamedTuple):
    """An idempotent producer in a batch header: its id, epoch and base sequence."""

    producer_id: int = -1
    epoch: int = -1
    base: int = -1


def stamped_batch(
    name: bytes,
    first: int,
    count: int,
    record_bytes: int,
    due_us: int,
    codec: int = 0,
    sequence: ProducerSequence | None = None,
    attributes: int = 0,
) -> bytes:
    """A batch of `count` records, numbered from `first` on."""
    if sequence is None:
        sequence = ProducerSequence()
    records = [
        Record(
            offset,
            due_us // 1000,
            None,
            stamped_value(Stamp(name, first + offset, due_us), record_bytes),
        )
        for offset in range(count)
    ]
    return bytes(
        build_batch(
            records,
            base_offset=0,
            last_offset=count - 1,
            codec=codec,
            attributes=attributes,
            producer_id=sequence.producer_id,
            producer_epoch=sequence.epoch,
            base_sequence=sequence.base,
        )
    )


def stamp_at(batches: Buffer, offset: int) -> Stamp | None:
    """The stamp of the record at this offset; None: there is none, or it is damaged."""
    for batch in split_batches(batches):
        for record in read_records(batch, DECODED_LIMIT):
            if record.offset == offset:
                return read_stamp(record.value)
    return None


class PartitionCheck:
    """Takes what fetches of one partition return, in order, and reports violations.

    From the start of a log (offset 0) every producer has to begin with its first record; from
    anywhere else a producer's numbering is known once one of its records was seen.
    """

    def __init__(self, partition: str, position: int) -> None:
        self._partition = partition
        self._from_start = position == 0
        self._next_number: dict[bytes, int] = {}
        self.position = position
        self.records = 0
        self.last: Stamp | None = None

    def feed(self, batches: Buffer) -> list[str]:
        """Report what is lost, duplicated, reordered or damaged in them; empty if nothing is."""
        try:
            return [found for batch in split_batches(batches) for found in self._batch(batch)]
        except CorruptBatch as error:
            return [f"damaged: {self._partition} at offset {self.position}: {error}"]

    def _batch(self, batch: memoryview) -> Iterator[str]:
        header = read_header(batch)
        if header.next_offset <= self.position:
            yield (
                f"duplicated: {self._partition} offsets {header.base_offset}-"
                f"{header.next_offset - 1} again, at {self.position}"
            )
            return
        if header.base_offset > self.position:
            missing = f"{self.position}-{header.base_offset - 1}"
            yield f"lost: {self._partition} offsets {missing} are missing"
            self.position = header.base_offset
        if checksum(batch) != header.crc:
            yield f"damaged: {self._partition} batch at {header.base_offset} fails its checksum"
            self.position = header.next_offset
            return
        if self._is_hidden(header, batch):
            self.position = header.next_offset
            return
        for record in read_records(batch, DECODED_LIMIT):
            if record.offset < self.position:
                continue  # before the fetch offset: Fetch returns whole batches
            yield from self._record(record)
        if self.position != header.next_offset:
            yield (
                f"lost: {self._partition} offsets {self.position}-{header.next_offset - 1} "
                "are missing inside a batch"
            )
            self.position = header.next_offset

    def _is_hidden(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether consumers do not see this batch: it is a transaction's marker."""
        return bool(header.attributes & CONTROL)

    def _record(self, record: Record) -> Iterator[str]:
        if record.offset != self.position:
            yield (
                f"lost: {self._partition} offsets {self.position}-{record.offset - 1} "
                "are missing inside a batch"
            )
        self.position = record.offset + 1
        self.records += 1
        stamp = read_stamp(record.value)
        if stamp is None:
            yield f"damaged: {self._partition} record at {record.offset} fails its checksum"
            return
        self.last = stamp
        expected = self._next_number.get(stamp.producer, 0 if self._from_start else stamp.number)
        self._next_number[stamp.producer] = max(expected, stamp.number + 1)
        if stamp.number == expected:
            return
        who = f"{self._partition} offset {record.offset}, producer {stamp.producer.hex()}"
        if stamp.number > expected:
            yield f"lost: {who}: records {expected}-{stamp.number - 1} are missing"
        else:
            yield f"duplicated or reordered: {who}: record {stamp.number} after {expected - 1}"
