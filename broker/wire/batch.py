"""The RecordBatch v2 header: what the broker reads and patches without touching records.

Nothing here decodes a record: the produce and fetch paths only ever look at these 61 bytes.

    byte  0  base offset       8   patched by the broker: outside the CRC
    byte  8  length            4   of everything after this field
    byte 12  leader epoch      4   patched by the broker: outside the CRC
    byte 16  magic             1   2
    byte 17  crc               4   CRC-32C from byte 21 to the end
    byte 21  attributes        2   0-2 codec, 3 LogAppendTime, 4 transactional, 5 control
    byte 23  last offset delta 4
    byte 27  base timestamp    8
    byte 35  max timestamp     8
    byte 43  producer id       8
    byte 51  producer epoch    2
    byte 53  base sequence     4
    byte 57  record count      4
    byte 61  records
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LEADER_EPOCH_AT = 12
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
MAX_TIMESTAMP_AT = 35
LENGTH_OVERHEAD = 12  # base offset and length itself, which `length` does not count

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
CODEC_NONE = 0
CODEC_ZSTD = 4

_INT64 = struct.Struct(">q")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_BASE_OFFSET_AND_LENGTH = struct.Struct(">qi")


class CorruptBatch(ValueError):
    """The bytes are not a record batch: wrong length, magic, count or checksum."""


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD


def read_header(batch: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at`. Raises CorruptBatch if it does not fit there."""
    if len(batch) - at < HEADER_SIZE:
        raise CorruptBatch(f"{len(batch) - at} bytes cannot hold a batch header")
    # This is what BatchHeader._make does, without its two calls.
    header = tuple.__new__(BatchHeader, HEADER.unpack_from(batch, at))
    if header.length < HEADER_SIZE - LENGTH_OVERHEAD or at + header.size > len(batch):
        raise CorruptBatch(f"batch length {header.length} does not fit {len(batch) - at} bytes")
    return header


def set_base_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int = 0) -> None:
    """Patch in the base offset and the leader epoch, which the CRC does not cover."""
    _INT64.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, LEADER_EPOCH_AT, leader_epoch)


def checksum(batch: Buffer) -> int:
    value: int = crc32c(memoryview(batch)[ATTRIBUTES_AT:])
    return value


def stamp_append_time(batch: bytearray | memoryview, attributes: int, now_ms: int) -> None:
    """Set LogAppendTime."""
    set_max_timestamp(batch, attributes | LOG_APPEND_TIME, now_ms)


def set_max_timestamp(batch: bytearray | memoryview, attributes: int, timestamp: int) -> None:
    """Set the timestamp and the attributes, which say whose time it is. Only this needs a new
    CRC."""
    _INT16.pack_into(batch, ATTRIBUTES_AT, attributes)
    _INT64.pack_into(batch, MAX_TIMESTAMP_AT, timestamp)
    _UINT32.pack_into(batch, CRC_AT, checksum(batch))


def split_batches(blob: Buffer) -> Iterator[memoryview]:
    """Return the batches of an entry."""
    view = memoryview(blob)
    at, end = 0, len(view)
    while at < end:
        size = read_header(view, at).size
        yield view[at : at + size]
        at += size


def headers(blob: Buffer) -> Iterator[BatchHeader]:
    """Yield the headers of the batches of an entry."""
    at, end = 0, len(blob)
    while at < end:
        header = read_header(blob, at)
        yield header
        at += header.size


def _step(length: int) -> int:
    """Return the position of the next batch: never backwards, whatever bytes are in a log."""
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        raise CorruptBatch(f"batch length {length}")
    return length + LENGTH_OVERHEAD


def base_offset_at(blob: Buffer, at: int) -> int:
    """Return the base offset of the batch that begins there in an entry."""
    offset: int = _BASE_OFFSET_AND_LENGTH.unpack_from(blob, at)[0]
    return offset


def find_batch(blob: Buffer, offset: int) -> int:
    """Return where the batch that contains `offset` (or the first one after it) begins in an entry.

    This is the length of the entry if every batch in it ends before `offset`.
    """
    at, end = 0, len(blob)
    while at < end:
        base, length = _BASE_OFFSET_AND_LENGTH.unpack_from(blob, at)
        (delta,) = _INT32.unpack_from(blob, at + LAST_OFFSET_DELTA_AT)
        if base + delta >= offset:
            return at
        at += _step(length)
    return end


def cut(blob: Buffer, start: int, limit: int, *, at_least_one: bool) -> int:
    """Return where to cut an entry so that whole batches from `start` on take at most `limit`
    bytes."""
    at, end = start, len(blob)
    if end - start <= limit:
        return end
    while at < end:
        _, length = _BASE_OFFSET_AND_LENGTH.unpack_from(blob, at)
        following = at + _step(length)
        if following - start > limit and not (at_least_one and at == start):
            return at
        at = following
    return at
