"""The records inside a batch: read them, build a batch of them, look one up.

Off the hot path of ordinary topics: compaction, recompression, look-up by timestamp and the check
of what is produced to compacted topics. Their produce and fetch never come here (see batch.py);
native topics, whose records are entries of their own, do.

    record: length varint, attributes int8 (unused), timestamp delta varlong, offset delta
            varint, key, value (length varint, negative for null, then the bytes),
            header count varint, headers (key, then value, each with its length varint)

All varints are zigzag. The bytes may be damaged or hostile: the outcome is records or CorruptBatch,
in time linear in the size of the (decompressed) batch. The checksum is not verified here.

    record.py         one record
    varints.py        its numbers
    headers.py        its headers
    walking.py        where the fields of each record of a batch are
    decoding.py       the records of a batch, and look-ups among them, by that walk
    encoding.py       a batch made of given records, or compressed with another codec
    batch_builder.py  a batch made record by record
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
