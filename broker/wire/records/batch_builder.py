"""Builds a batch record by record: the hot path of native topics, whose entries become batches."""

from __future__ import annotations

from moldau.broker.wire.batch import (
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    checksum,
)
from moldau.broker.wire.primitives import TABLE_SIZE, UVARINTS, uvarint
from moldau.broker.wire.records.record import MAGIC
from moldau.broker.wire.records.varints import NULL_LENGTH, wrap, zigzag


class BatchBuilder:
    """Takes the bytes of each record; no Record is created."""

    __slots__ = (
        "_base_timestamp",
        "_max_timestamp",
        "_parts",
        "base_offset",
        "count",
        "last_offset",
        "size",
    )

    def __init__(self, base_offset: int, base_timestamp: int) -> None:
        self.base_offset = base_offset
        self.last_offset = base_offset - 1
        self._base_timestamp = base_timestamp
        self._max_timestamp = base_timestamp
        self._parts = [bytes(HEADER_SIZE)]
        self.size = HEADER_SIZE
        self.count = 0

    def add(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: bytes
    ) -> None:
        """Add a record. Offsets have to grow, and to stay within 31 bits of the first."""
        # Written out for the same reason as in `walk` of walking.py.
        number = timestamp - self._base_timestamp << 1
        when = UVARINTS[number] if 0 <= number < TABLE_SIZE else zigzag(wrap(number >> 1))
        number = offset - self.base_offset << 1
        where = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        if key is None:
            key_length, key = NULL_LENGTH, b""
        else:
            number = len(key) << 1
            key_length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        if value is None:
            value_length, value = NULL_LENGTH, b""
        else:
            number = len(value) << 1
            value_length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        head = b"\0" + when + where + key_length
        size = len(head) + len(key) + len(value_length) + len(value) + len(headers)
        number = size << 1
        length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        # These are not joined yet: the bytes of a value are copied once, when the batch is built.
        self._parts += (length, head, key, value_length, value, headers)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self.count += 1
        self.last_offset = offset
        self.size += len(length) + size

    def build(self) -> bytearray:
        header = BatchHeader(
            base_offset=self.base_offset,
            length=self.size - LENGTH_OVERHEAD,
            leader_epoch=0,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=self.last_offset - self.base_offset,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=self.count,
        )
        batch = bytearray().join(self._parts)
        HEADER.pack_into(batch, 0, *header)
        batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")
        return batch
