"""The records of a batch, and look-ups among them. The checks are in walking.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from moldau.broker.wire.batch import BatchHeader, Buffer
from moldau.broker.wire.records.record import Record
from moldau.broker.wire.records.walking import NULL_END, Span, checked_header, open_batch, walk


def read_records(batch: Buffer, limit: int) -> list[Record]:
    """Return the records of one batch, decompressing at most `limit` bytes."""
    return list(iter_records(batch, limit))


def iter_records(batch: Buffer, limit: int, payload: bytes | None = None) -> Iterator[Record]:
    """Yield the records one by one, for callers that must not block their event loop for long.

    `payload` is the decompressed batch, if it is known already.
    """
    if payload is None:
        header, payload = open_batch(batch, limit)
    else:
        header = checked_header(batch)
    base = header.base_offset
    return (
        Record(
            base + delta,
            timestamp,
            None if key_end < 0 else payload[key_at:key_end],
            None if value_end < 0 else payload[value_at:value_end],
            payload[headers_at:end],
        )
        for delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end in walk(
            header, payload
        )
    )


def record_spans(batch: Buffer, limit: int) -> tuple[bytes, list[Span]]:
    """Return the payload of a batch and the positions of its fields; no Record is created."""
    header, payload = open_batch(batch, limit)
    return payload, list(walk(header, payload))


def record_at(payload: bytes, span: Span) -> Record:
    """Return the record of a span; its offset is only the delta."""
    delta, timestamp, key_at, key_end, value_at, value_end, headers_at, end = span
    return Record(
        delta,
        timestamp,
        None if key_end < 0 else payload[key_at:key_end],
        None if value_end < 0 else payload[value_at:value_end],
        payload[headers_at:end],
    )


def keyless_records(header: BatchHeader, payload: bytes, most: int) -> list[int]:
    """Return the positions of the first records without a key, which a compacted topic refuses."""
    keyless = (at for at, span in enumerate(walk(header, payload)) if span[3] == NULL_END)
    return list(islice(keyless, most))


def timestamps_in(batch: Buffer, limit: int) -> Iterator[tuple[int, int]]:
    """Return the offset and timestamp of each record."""
    header, payload = open_batch(batch, limit)
    return ((header.base_offset + span[0], span[1]) for span in walk(header, payload))


def record_timestamps(header: BatchHeader, payload: bytes) -> Iterator[int]:
    return (span[1] for span in walk(header, payload))


def first_at_or_after(
    batch: Buffer, timestamp: int, limit: int, start: int = 0
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record, by offset, that is not older than
    `timestamp`.

    Records before the offset `start` do not count: a log may begin inside a batch.
    """
    header, payload = open_batch(batch, limit)
    start -= header.base_offset
    for span in walk(header, payload):
        if span[1] >= timestamp and span[0] >= start:
            return header.base_offset + span[0], span[1]
    return None
