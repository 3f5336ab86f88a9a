"""Builds batches of given records, and compresses batches with another codec."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.wire import codecs
from moldau.broker.wire.batch import (
    CODEC_MASK,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    checksum,
)
from moldau.broker.wire.primitives import TABLE_SIZE, UVARINTS, uvarint
from moldau.broker.wire.records.record import MAGIC, NO_TIMESTAMP, Record
from moldau.broker.wire.records.varints import NULL_LENGTH, wrap, zigzag


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
    """Build a batch of records that keep their offsets and timestamps.

    It covers the offsets from `base_offset` to `last_offset`, including those that have no record
    (any more). Of `attributes`, the arguments of that name decide the codec and the delete horizon,
    and the rest is kept. A delete horizon replaces the base timestamp, as in Kafka: readers add it
    to the deltas all the same.

    `payload` is the result of `encode_records`, if that was done piece by piece.

    A batch without records, which Kafka writes to keep the sequence numbers of a producer's last
    batch, is never compressed.
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


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Encode records as in a batch with this base; the pieces of a batch can be joined."""
    # Written out for the same reason as in `walk` of walking.py.
    parts: list[bytes] = []
    join, table, size = b"".join, UVARINTS, TABLE_SIZE
    for record in records:
        number = record.timestamp - base_timestamp << 1
        when = table[number] if 0 <= number < size else zigzag(wrap(number >> 1))
        number = record.offset - base_offset << 1
        where = table[number] if number < size else uvarint(number)
        key, value = record.key, record.value
        if key is None:
            key_length, key = NULL_LENGTH, b""
        else:
            number = len(key) << 1
            key_length = table[number] if number < size else uvarint(number)
        if value is None:
            value_length, value = NULL_LENGTH, b""
        else:
            number = len(value) << 1
            value_length = table[number] if number < size else uvarint(number)
        body = join((b"\0", when, where, key_length, key, value_length, value, record.headers))
        number = len(body) << 1
        parts.append(table[number] if number < size else uvarint(number))
        parts.append(body)
    return join(parts)


def with_codec(header: BatchHeader, payload: bytes, codec: int, level: int | None) -> bytearray:
    """Return the batch of a header and its decompressed records, possibly with another codec.

    The records are not decoded: the payload is compressed as a whole.
    """
    return _assemble(
        header._replace(attributes=header.attributes & ~CODEC_MASK | codec),
        codecs.compress(codec, payload, level),
    )


def _assemble(header: BatchHeader, payload: bytes) -> bytearray:
    """Join header and payload, and set their length and checksum."""
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_OVERHEAD))
    batch[HEADER_SIZE:] = payload
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")
    return batch
