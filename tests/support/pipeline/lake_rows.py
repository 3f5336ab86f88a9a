"""Lakes made by hand: rows of known content, committed as the archiver does it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from moldau.broker.wire.records import Record, build_batch, encode_headers
from moldau.ops.pipeline.lake.data_files import DataFileWriter
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, file_schema
from moldau.ops.pipeline.lake.tables import Lake, application_of
from tests.support.pipeline.spark import headers_of, key_of, timestamp_of, value_of

DAY_MS = 86_400_000
_MICROS = pa.timestamp("us", tz="UTC")


class Row(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


def row_of(partition: int, offset: int) -> Row:
    """What tests/support/pipeline/spark.py produces there."""
    headers = [(name, _bytes(value)) for name, value in headers_of(partition, offset)]
    key, value = key_of(partition, offset), value_of(partition, offset)
    return Row(partition, offset, key, value, timestamp_of(offset), headers)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def add_rows(lake: Lake, topic: str, rows: Iterable[Row], leader_epoch: int = 0) -> None:
    """One commit of each table; in `batches` a batch per partition, if offsets follow each other.

    The topic's id is its name, padded.
    """
    days: dict[int, list[Row]] = {}
    for row in rows:
        days.setdefault(row.timestamp_ms // DAY_MS, []).append(row)
    records, batches = DataFileWriter(lake.path, RECORDS), DataFileWriter(lake.path, BATCHES)
    ends: dict[int, int] = {}
    for day, mine in days.items():
        records.write(topic, day, _record_columns(mine))
        for partition in sorted({row.partition for row in mine}):
            here = [row for row in mine if row.partition == partition]
            batches.write(topic, day, _batch_columns(here, leader_epoch))
            ends[partition] = max(ends.get(partition, 0), here[-1].offset + 1)
    topic_id = topic.encode().ljust(16, b"\0")[:16]
    versions = {application_of(topic_id, partition): end for partition, end in ends.items()}
    for table, writer in ((BATCHES, batches), (RECORDS, records)):
        lake.commit(table, lake.open(table), writer.close(), versions, {})


def make_lake(path: Path) -> Lake:
    lake = Lake(path)
    lake.create()
    return lake


def _record_columns(rows: list[Row]) -> list[object]:
    headers = [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows]
    return [
        pa.array([row.partition for row in rows], pa.int32()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp_ms * 1000 for row in rows], pa.int64()).view(_MICROS),
        pa.array([0] * len(rows), pa.int32()),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array(headers, file_schema(RECORDS).field("headers").type),
    ]


def _batch_columns(rows: list[Row], leader_epoch: int) -> list[object]:
    """One batch of all of them."""
    first, last = rows[0], rows[-1]
    data = build_batch(
        [Record(r.offset, r.timestamp_ms, r.key, r.value, encode_headers(r.headers)) for r in rows],
        base_offset=first.offset,
        last_offset=last.offset,
        leader_epoch=leader_epoch,
    )
    newest = max(row.timestamp_ms for row in rows)
    return [
        pa.array([first.partition], pa.int32()),
        pa.array([first.offset], pa.int64()),
        pa.array([last.offset], pa.int64()),
        pa.array([first.timestamp_ms * 1000], pa.int64()).view(_MICROS),
        pa.array([newest * 1000], pa.int64()).view(_MICROS),
        pa.array(["none"], pa.string()),
        pa.array([len(rows)], pa.int32()),
        pa.array([False], pa.bool_()),
        pa.array([False], pa.bool_()),
        pa.array([bytes(data)], pa.binary()),
        pa.array([None], pa.string()),
    ]
