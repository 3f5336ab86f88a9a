"""The records inside a batch: read them, build a batch of them, look one up.

Off the hot path of ordinary topics: compaction, recompression, look-up by timestamp and the check
of what is produced to compacted topics. Their produce and fetch never come here (see batch.py);
native topics, whose records are entries of their own, do.

    record: length varint, attributes int8 (unused), timestamp delta varlong, offset delta
            varint, key, value (length varint, negative for null, then the bytes),
            header count varint, headers (key, then value, each with its length varint)

All varints are zigzag. What is read may be damaged or hostile: whatever it is, the outcome is
records or CorruptBatch, in time linear in the size of the (decompressed) batch. The checksum
is not looked at here.

The one walk over records, `_walk`, lets each field end where it says and then compares the
end of the last one with the end of the record: positions only grow, so a field that overruns
its record cannot make the two meet. Overrunning the batch is an IndexError on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import msgspec

from broker.wire import codecs
from broker.wire.batch import (
    CODEC_MASK,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    checksum,
    read_header,
)
from broker.wire.primitives import TABLE_SIZE, UVARINTS, uvarint

MAGIC = 2
NO_HEADERS = b"\0"
NO_TIMESTAMP = -1

_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_MAX_VARLONG_SHIFT = 63
_NULL_END = -1

# Offset delta, timestamp; where key and value begin and end; where the headers begin and,
# with them, the record ends. A key or value that is null ends at _NULL_END.
Span = tuple[int, int, int, int, int, int, int, int]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record with its place in the log.

    `headers` are the bytes as they came, count included: what is not understood is not
    changed. See `decode_headers`.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: bytes = NO_HEADERS


def read_records(batch: Buffer, limit: int) -> list[Record]:
    """The records of one batch; at most `limit` bytes are decompressed for them."""
    return list(iter_records(batch, limit))


def iter_records(batch: Buffer, limit: int) -> Iterator[Record]:
    """The same, one by one: for those who must not be away from their event loop for long."""
    header, payload = _open(batch, limit)
    base = header.base_offset
    return (
        Record(
            base + delta,
            timestamp,
            None if key_end < 0 else payload[key_at:key_end],
            None if value_end < 0 else payload[value_at:value_end],
            payload[headers_at:end],
        )
        for delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end in _walk(
            header, payload
        )
    )


def record_spans(batch: Buffer, limit: int) -> tuple[bytes, list[Span]]:
    """The payload of a batch and where the fields of its records are, for those in a hurry."""
    header, payload = _open(batch, limit)
    return payload, list(_walk(header, payload))


def record_at(payload: bytes, span: Span) -> Record:
    """The record of a span; its offset is only the delta."""
    delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end = span
    return Record(
        delta,
        timestamp,
        None if key_end < 0 else payload[key_at:key_end],
        None if value_end < 0 else payload[value_at:value_end],
        payload[headers_at:end],
    )


def keyless_record(batch: Buffer, limit: int) -> bool:
    """Whether a record of the batch has no key, which a compacted topic refuses.

    When it has none, every record of the batch was walked over and is well-formed.
    """
    header, payload = _open(batch, limit)
    return any(span[3] == _NULL_END for span in _walk(header, payload))


def first_at_or_after(
    batch: Buffer, timestamp: int, limit: int, start: int = 0
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record, by offset, that is not older than `timestamp`.

    Records before the offset `start` do not count: a log may begin inside a batch.
    """
    header, payload = _open(batch, limit)
    start -= header.base_offset
    for span in _walk(header, payload):
        if span[1] >= timestamp and span[0] >= start:
            return header.base_offset + span[0], span[1]
    return None


def offset_of_max_timestamp(batch: Buffer, limit: int) -> tuple[int, int]:
    """Offset and timestamp of the newest record, the first of them if several are.

    (-1, -1), which is how ListOffsets says "none", for a batch without records.
    """
    header, payload = _open(batch, limit)
    newest = max(_walk(header, payload), key=itemgetter(1), default=None)
    return (-1, NO_TIMESTAMP) if newest is None else (header.base_offset + newest[0], newest[1])


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int,
    codec: int = codecs.NONE,
    level: int | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = 0,
    delete_horizon_ms: int | None = None,
    payload: bytes | None = None,
) -> bytearray:
    """A batch of records that keep their offsets and timestamps.

    It covers the offsets from `base_offset` to `last_offset`, also those that have no record
    (any more). Of `attributes`, the codec and the delete horizon are decided by the arguments
    of that name and the rest is kept. A delete horizon takes the place of the base timestamp,
    as in Kafka: readers add it to the deltas all the same.

    `payload` is what `encode_records` makes of the records, when that was done piece by piece.

    A batch without records, which Kafka writes to keep what a producer's last batch says
    about its sequence numbers, is never compressed.
    """
    previous = base_offset - 1
    for record in records:
        if record.offset <= previous:
            raise ValueError(f"record {record.offset} does not follow {previous}")
        previous = record.offset
    if previous > last_offset:
        raise ValueError(f"record {previous} is not in a batch that ends at {last_offset}")

    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON
    else:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
        attributes &= ~DELETE_HORIZON
    if not records:
        codec = codecs.NONE
    if payload is None:
        payload = encode_records(records, base_offset, base_timestamp)
    return _assemble(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes & ~CODEC_MASK | codec,
            last_offset_delta=last_offset - base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max((record.timestamp for record in records), default=NO_TIMESTAMP),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(records),
        ),
        payload if codec == codecs.NONE else codecs.compress(codec, payload, level),
    )


class BatchBuilder:
    """A batch made record by record, without more to each than its bytes."""

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
        """Offsets have to grow, and to stay within 31 bits of the first."""
        # Spelt out for the same reason as in `_walk`.
        number = timestamp - self._base_timestamp << 1
        when = UVARINTS[number] if 0 <= number < TABLE_SIZE else _zigzag(_wrap(number >> 1))
        number = offset - self.base_offset << 1
        where = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        if key is None:
            key_length, key = _NULL, b""
        else:
            number = len(key) << 1
            key_length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        if value is None:
            value_length, value = _NULL, b""
        else:
            number = len(value) << 1
            value_length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        head = b"\0" + when + where + key_length
        size = len(head) + len(key) + len(value_length) + len(value) + len(headers)
        number = size << 1
        length = UVARINTS[number] if number < TABLE_SIZE else uvarint(number)
        # Not joined yet: the bytes of a value are copied once, when the batch is built.
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


def recompress(batch: Buffer, codec: int, level: int | None, limit: int) -> Buffer:
    """The same batch under another codec; the very same object when it has that one already.

    The records are not looked at: what is compressed anew is the payload as a whole.
    """
    header = _checked_header(batch)
    if header.attributes & CODEC_MASK == codec or header.record_count == 0:
        return batch
    return _assemble(
        header._replace(attributes=header.attributes & ~CODEC_MASK | codec),
        codecs.compress(codec, _payload(batch, header, limit), level),
    )


def decode_headers(raw: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of a record; a key that is not UTF-8 is patched up, as Java clients do."""
    try:
        end = _end_of_headers(raw, 0)
    except IndexError:
        raise CorruptBatch("record headers end early") from None
    if end != len(raw):
        raise CorruptBatch("record headers do not end where their record does")
    headers: list[tuple[str, bytes | None]] = []
    count, at = _varint(raw, 0)
    for _ in range(count):
        length, at = _varint(raw, at)
        key = raw[at : at + length].decode("utf-8", "replace")
        length, at = _varint(raw, at + length)
        headers.append((key, None if length < 0 else raw[at : at + length]))
        at += max(length, 0)
    return headers


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """What `Record.headers` holds."""
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        key = name.encode()
        parts += (_zigzag(len(key)), key)
        parts += (_NULL,) if value is None else (_zigzag(len(value)), value)
        count += 1
    return _zigzag(count) + b"".join(parts)


def _open(batch: Buffer, limit: int) -> tuple[BatchHeader, bytes]:
    header = _checked_header(batch)
    return header, _payload(batch, header, limit)


def _checked_header(batch: Buffer) -> BatchHeader:
    header = read_header(batch)
    if header.magic != MAGIC:
        raise CorruptBatch(f"a batch of format {header.magic}, not {MAGIC}")
    if header.size != len(batch):
        raise CorruptBatch(f"{len(batch)} bytes hold a batch of {header.size}")
    if header.record_count < 0 or header.next_offset > _MAX_INT64:
        raise CorruptBatch(f"{header.record_count} records up to offset {header.next_offset}")
    return header


def _payload(batch: Buffer, header: BatchHeader, limit: int) -> bytes:
    data = memoryview(batch)[HEADER_SIZE:]
    codec = header.attributes & CODEC_MASK
    return bytes(data) if codec == codecs.NONE else codecs.decompress(codec, data, limit)


def _walk(header: BatchHeader, payload: bytes) -> Iterator[Span]:
    """Where the fields of each record are; see the head of this module for how it is checked."""
    # The same five steps for each varint, spelt out: most take one byte, nearly all of the
    # others two, and a call for each would make this a quarter slower.
    at, previous = 0, -1
    base_timestamp, last_delta = header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    lowest, highest = _MIN_INT64, _MAX_INT64
    try:
        for _ in range(header.record_count):
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = _long_varint(payload, at, byte)
            end = at + (byte >> 1 ^ -(byte & 1))
            byte = payload[at + 1]  # after the attributes
            at += 2
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = _long_varint(payload, at, byte)
            timestamp = base_timestamp + (byte >> 1 ^ -(byte & 1))
            if append_time is not None:
                timestamp = append_time
            elif not lowest <= timestamp <= highest:
                timestamp = _wrap(timestamp)
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = _long_varint(payload, at, byte)
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
                    byte, at = _long_varint(payload, at, byte)
            key_at = at
            key_end = _NULL_END
            if not byte & 1:
                key_end = at = at + (byte >> 1)
            byte = payload[at]
            at += 1
            if byte > 0x7F:
                if (more := payload[at]) < 0x80:
                    at += 1
                    byte += (more << 7) - 0x80
                else:
                    byte, at = _long_varint(payload, at, byte)
            value_at = at
            value_end = _NULL_END
            if not byte & 1:
                value_end = at = at + (byte >> 1)
            headers_at = at
            at = at + 1 if payload[at] == 0 else _end_of_headers(payload, at)
            if at != end:
                raise CorruptBatch("a record does not end where it says")
            yield delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end
    except IndexError:
        raise CorruptBatch("a record does not end inside its batch") from None
    if at != len(payload):
        raise CorruptBatch(
            f"{len(payload) - at} bytes after the {header.record_count} declared records"
        )


def _end_of_headers(payload: bytes, at: int) -> int:
    count, at = _varint(payload, at)
    if count < 0:
        raise CorruptBatch(f"a record with {count} headers")
    for _ in range(count):
        length, at = _varint(payload, at)
        if length < 0:
            raise CorruptBatch("a record header without a key")
        length, at = _varint(payload, at + length)
        if length > 0:
            at += length
    return at


def _varint(buf: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of up to ten bytes and the position after it."""
    byte = buf[at]
    at += 1
    if byte > 0x7F:
        byte, at = _long_varint(buf, at, byte)
    return byte >> 1 ^ -(byte & 1), at


def _long_varint(buf: bytes, at: int, byte: int) -> tuple[int, int]:
    """The rest of a varint after its first byte, not yet unzigzagged."""
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        if shift > _MAX_VARLONG_SHIFT:
            raise CorruptBatch("a varint longer than ten bytes")
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def _zigzag(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    return UVARINTS[value] if value < TABLE_SIZE else uvarint(value)


_NULL = _zigzag(-1)


def _wrap(value: int) -> int:
    """Into 64 bits, as Java's arithmetic does: deltas need not fit when timestamps do."""
    return (value - _MIN_INT64 & (1 << 64) - 1) + _MIN_INT64


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Records as they stand in a batch with this base; the pieces of a batch can be joined."""
    # Spelt out for the same reason as in `_walk`.
    parts: list[bytes] = []
    join, table, size = b"".join, UVARINTS, TABLE_SIZE
    for record in records:
        number = record.timestamp - base_timestamp << 1
        when = table[number] if 0 <= number < size else _zigzag(_wrap(number >> 1))
        number = record.offset - base_offset << 1
        where = table[number] if number < size else uvarint(number)
        key, value = record.key, record.value
        if key is None:
            key_length, key = _NULL, b""
        else:
            number = len(key) << 1
            key_length = table[number] if number < size else uvarint(number)
        if value is None:
            value_length, value = _NULL, b""
        else:
            number = len(value) << 1
            value_length = table[number] if number < size else uvarint(number)
        body = join((b"\0", when, where, key_length, key, value_length, value, record.headers))
        number = len(body) << 1
        parts.append(table[number] if number < size else uvarint(number))
        parts.append(body)
    return join(parts)


def _assemble(header: BatchHeader, payload: bytes) -> bytearray:
    """Header and payload together, with the length and the checksum they make."""
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_OVERHEAD))
    batch[HEADER_SIZE:] = payload
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")
    return batch
