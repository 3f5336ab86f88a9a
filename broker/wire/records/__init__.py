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

    record.py     a record      varints.py   the numbers in it      headers.py   its headers
    walking.py    where the fields of each record of a batch are; decoding.py is made of that
    encoding.py   batches of records that are there; batch_builder.py makes one record by record
"""

from broker.wire.records.batch_builder import BatchBuilder
from broker.wire.records.decoding import (
    first_at_or_after,
    iter_records,
    keyless_record,
    offset_of_max_timestamp,
    read_records,
    record_at,
    record_spans,
)
from broker.wire.records.encoding import build_batch, encode_records, recompress
from broker.wire.records.headers import decode_headers, encode_headers
from broker.wire.records.record import NO_HEADERS, NO_TIMESTAMP, Record
from broker.wire.records.walking import Span

__all__ = [
    "NO_HEADERS",
    "NO_TIMESTAMP",
    "BatchBuilder",
    "Record",
    "Span",
    "build_batch",
    "decode_headers",
    "encode_headers",
    "encode_records",
    "first_at_or_after",
    "iter_records",
    "keyless_record",
    "offset_of_max_timestamp",
    "read_records",
    "recompress",
    "record_at",
    "record_spans",
]
