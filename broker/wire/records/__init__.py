"""The records inside a batch: reading them, building a batch of them, looking one up.

These are off the hot path of ordinary topics: compaction, recompression, look-up by timestamp, and
checking batches for compacted topics use them. Ordinary produce and fetch never come here (see
batch.py); native topics do, whose records are separate entries.

    record: length varint, attributes int8 (unused), timestamp delta varlong, offset delta
            varint, key, value (length varint, negative for null, then the bytes),
            header count varint, headers (key, then value, each with its length varint)

All varints are zigzag. The bytes may be damaged or hostile: the outcome is records or CorruptBatch,
in time linear in the size of the (decompressed) batch. The checksum is not verified here.

    record.py         one record
    varints.py        its numbers
    headers.py        its headers
    walking.py        finds the fields of each record of a batch
    decoding.py       the records of a batch, and look-ups among them, by that walk
    encoding.py       builds a batch of given records, or changes its codec
    validation.py     checks a produced batch without building records
    batch_builder.py  builds a batch record by record
"""

from moldau.broker.wire.records.batch_builder import BatchBuilder
from moldau.broker.wire.records.decoding import (
    first_at_or_after,
    iter_records,
    keyless_records,
    read_records,
    record_at,
    record_spans,
    record_timestamps,
    timestamps_in,
)
from moldau.broker.wire.records.encoding import build_batch, encode_records, with_codec
from moldau.broker.wire.records.headers import decode_headers, encode_headers
from moldau.broker.wire.records.record import NO_HEADERS, NO_TIMESTAMP, Record
from moldau.broker.wire.records.validation import check_records
from moldau.broker.wire.records.walking import Span, checked_header, payload_of

__all__ = [
    "NO_HEADERS",
    "NO_TIMESTAMP",
    "BatchBuilder",
    "Record",
    "Span",
    "build_batch",
    "check_records",
    "checked_header",
    "decode_headers",
    "encode_headers",
    "encode_records",
    "first_at_or_after",
    "iter_records",
    "keyless_records",
    "payload_of",
    "read_records",
    "record_at",
    "record_spans",
    "record_timestamps",
    "timestamps_in",
    "with_codec",
]
