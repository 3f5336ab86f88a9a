"""Batches a producer could send, good and bad ones, with a checksum that is right."""

from __future__ import annotations

import struct

import crc32c

from moldau.broker.wire.records import Record, build_batch

COUNT_AT, RECORDS_AT, ATTRIBUTES_AT, CRC_AT, LENGTH_AT = 57, 61, 21, 17, 8
LAST_OFFSET_DELTA_AT = 23
TIMESTAMP = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
GARBAGE = b"this is no compressed payload"


def sealed(batch: bytearray) -> bytearray:
    """The batch with its length and checksum made right."""
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LENGTH_AT - 4)
    struct.pack_into(">I", batch, CRC_AT, crc32c.crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return batch


def records(*keys: bytes | None) -> bytearray:
    made = [Record(at, TIMESTAMP, key, b"value-%d" % at) for at, key in enumerate(keys)]
    return build_batch(made, base_offset=0, last_offset=len(made) - 1)


def good() -> bytearray:
    return records(b"a", b"b")


def keyless_of_three() -> bytearray:
    """The first and the last record have no key."""
    return records(None, b"b", None)


def _garbage(codec: int) -> bytearray:
    batch = records(b"a")[:RECORDS_AT] + GARBAGE
    struct.pack_into(">h", batch, ATTRIBUTES_AT, codec)
    return sealed(batch)


def garbage_gzip() -> bytearray:
    return _garbage(GZIP)


def garbage_snappy() -> bytearray:
    return _garbage(SNAPPY)


def garbage_lz4() -> bytearray:
    return _garbage(LZ4)


def garbage_zstd() -> bytearray:
    return _garbage(ZSTD)


def miscounted(count: int) -> bytearray:
    """One record, and a header that counts others."""
    batch = records(b"a")
    struct.pack_into(">i", batch, COUNT_AT, count)
    struct.pack_into(">i", batch, LAST_OFFSET_DELTA_AT, max(count - 1, 0))
    return sealed(batch)


def trailing_bytes() -> bytearray:
    return sealed(records(b"a") + b"\0\0\0")


def overrunning() -> bytearray:
    """The record says that it is longer than the batch."""
    batch = records(b"a")
    batch[RECORDS_AT] = 0x7E  # zigzag varint: 63 bytes
    return sealed(batch)


def offsets_not_in_order() -> bytearray:
    batch = records(b"a", b"b")
    first = batch[RECORDS_AT] // 2 + 1
    # length, attributes, timestamp delta, offset delta
    batch[RECORDS_AT + first + 3] = 0x06  # zigzag 3 instead of 1
    return sealed(batch)


def negative_delta() -> bytearray:
    batch = records(b"a")
    batch[RECORDS_AT + 3] = 0x01  # zigzag -1
    return sealed(batch)
