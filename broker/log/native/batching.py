"""Stream entries as record batches, the form in which Kafka clients read them. Pure.

A batch's records are at most 2^31 - 1 offsets apart, which at 10 bits is 35 minutes: where a topic
was quiet for longer a new batch begins. Batches are kept small enough to be cut at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.log.native.fields import from_fields
from broker.log.native.ids import Id, Run
from broker.wire.records import Record, build_batch

MOST_DELTA = (1 << 31) - 1
BATCH_BYTES = 1 << 20
RECORD_OVERHEAD = 24  # bytes about, beside key, value and headers

RawEntry = tuple[Id, Sequence[bytes]]


def numbered(entries: Iterable[RawEntry], run: Run, value_field: bytes | None) -> list[Record]:
    """The records from the wanted offset on."""
    records = []
    for entry_id, fields in entries:
        offset = run.offset_of(entry_id)
        if offset is None:
            continue
        timestamp, key, value, headers = from_fields(fields, value_field)
        when = entry_id.ms if timestamp is None else timestamp
        records.append(Record(offset, when, key, value, headers))
    return records


def size_of(record: Record) -> int:
    """About, on the wire."""
    return len(record.key or b"") + len(record.value or b"") + len(record.headers) + RECORD_OVERHEAD


def to_batches(records: Sequence[Record]) -> list[bytearray]:
    batches: list[bytearray] = []
    begin = size = 0
    for index, record in enumerate(records):
        too_far = record.offset - records[begin].offset > MOST_DELTA
        if index > begin and (too_far or size >= BATCH_BYTES):
            batches.append(_batch(records[begin:index]))
            begin, size = index, 0
        size += size_of(record)
    if begin < len(records):
        batches.append(_batch(records[begin:]))
    return batches


def _batch(records: Sequence[Record]) -> bytearray:
    first, last = records[0].offset, records[-1].offset
    return build_batch(records, base_offset=first, last_offset=last)
