"""Finds the fields of each record of a batch: the one walk over records.

`walk` takes each field's length as declared and then compares the end of the last one with the end
of the record: positions only grow, so a field that overruns its record cannot make the two meet.
Overrunning the batch raises IndexError on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.wire import codecs
from moldau.broker.wire.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
)
from moldau.broker.wire.records.headers import end_of_headers
from moldau.broker.wire.records.record import MAGIC
from moldau.broker.wire.records.varints import MAX_INT64, MIN_INT64, long_varint, wrap

NULL_END = -1

# Offset delta, timestamp; where key and value begin and end; where the headers begin and,
# with them, the record ends. A key or value that is null ends at NULL_END.
Span = tuple[int, int, int, int, int, int, int, int]


def open_batch(batch: Buffer, limit: int) -> tuple[BatchHeader, bytes]:
    header = checked_header(batch)
    return header, payload_of(batch, header, limit)


def checked_header(batch: Buffer) -> BatchHeader:
    header = read_header(batch)
    if header.magic != MAGIC:
        raise CorruptBatch(f"a batch of format {header.magic}, not {MAGIC}")
    if header.size != len(batch):
        raise CorruptBatch(f"{len(batch)} bytes hold a batch of {header.size}")
    if header.record_count < 0 or header.next_offset > MAX_INT64:
        raise CorruptBatch(f"{header.record_count} records up to offset {header.next_offset}")
    return header


def payload_of(batch: Buffer, header: BatchHeader, limit: int) -> bytes:
    data = memoryview(batch)[HEADER_SIZE:]
    codec = header.attributes & CODEC_MASK
    return bytes(data) if codec == codecs.NONE else codecs.decompress(codec, data, limit)


def walk(header: BatchHeader, payload: bytes) -> Iterator[Span]:
    """Return the positions of the fields of each record; the module explains the check."""
    # The same five steps are written out for each varint: most take one byte, nearly all of the
    # others two, and a call for each would make this a quarter slower.
    at, previous = 0, -1
    base_timestamp, last_delta = header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    lowest, highest = MIN_INT64, MAX_INT64
    try:
        for _ in range(header.record_count):
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            end = at + (byte >> 1 ^ -(byte & 1))
            byte = payload[at + 1]  # after the attributes
            at += 2
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            timestamp = base_timestamp + (byte >> 1 ^ -(byte & 1))
            if append_time is not None:
                timestamp = append_time
            elif not lowest <= timestamp <= highest:
                timestamp = wrap(timestamp)
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            delta = byte >> 1 ^ -(byte & 1)
            if not previous < delta <= last_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous}, up to {last_delta}")
            previous = delta
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            key_at = at
            key_end = NULL_END
            if not byte & 1:
                key_end = at = at + (byte >> 1)
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = long_varint(payload, at, byte)
            value_at = at
            value_end = NULL_END
            if not byte & 1:
                value_end = at = at + (byte >> 1)
            headers_at = at
            at = at + 1 if payload[at] == 0 else end_of_headers(payload, at)
            if at != end:
                raise CorruptBatch("a record does not have its declared length")
            yield delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end
    except IndexError:
        raise CorruptBatch("a record does not end inside its batch") from None
    if at != len(payload):
        raise CorruptBatch(
            f"{len(payload) - at} bytes after the {header.record_count} declared records"
        )
