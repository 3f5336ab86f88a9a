"""The two tables of a lake: their names, their columns in Arrow and in Spark, their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from moldau.ops.pipeline.source.fields import HEADERS_TYPE

BATCHES, RECORDS = "batches", "records"
TABLES = (BATCHES, RECORDS)
PARTITIONED_BY = ["topic", "date"]

_TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMAS: Mapping[str, Any] = {
    BATCHES: pa.schema(
        [
            ("topic", pa.string()),
            ("date", pa.date32()),
            ("partition", pa.int32()),
            ("base_offset", pa.int64()),
            ("last_offset", pa.int64()),
            ("base_timestamp", _TIMESTAMP),
            ("max_timestamp", _TIMESTAMP),
            ("codec", pa.string()),
            ("record_count", pa.int32()),
            ("control", pa.bool_()),  # the end of a transaction, no records
            ("aborted", pa.bool_()),  # by its transaction: not in `records`
            ("data", pa.binary()),
            ("unreadable", pa.string()),  # why its records are not in `records`, else null
        ]
    ),
    RECORDS: pa.schema(
        [
            ("topic", pa.string()),
            ("date", pa.date32()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", _TIMESTAMP),
            ("timestampType", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", HEADERS_TYPE),
        ]
    ),
}
SPARK_SCHEMAS = {
    "batches": (
        "topic string, date date, partition int, base_offset bigint, last_offset bigint, "
        "base_timestamp timestamp, max_timestamp timestamp, codec string, record_count int, "
        "control boolean, aborted boolean, data binary, unreadable string"
    ),
    "records": (
        "topic string, date date, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    ),
}


def file_schema(table: str) -> Any:
    """The columns of a data file: without those that Delta keeps in its path."""
    return pa.schema([field for field in SCHEMAS[table] if field.name not in ("topic", "date")])
