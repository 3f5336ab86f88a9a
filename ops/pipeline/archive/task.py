"""A task of the archiver, for executors: reads ranges of offsets, writes files for both tables.

The driver commits the files. Compaction deletes those of failed tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.broker.process import prepare_process
from moldau.broker.wire.batch import CODEC_MASK, Buffer, CorruptBatch
from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.lake.data_files import DataFileWriter, NewFile
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, file_schema
from moldau.ops.pipeline.source.data_source import timestamps
from moldau.ops.pipeline.source.decode import FIRST_MS, LAST_MS, Columns, FetchedBatch, decode
from moldau.ops.pipeline.source.fetch import FetchSettings, OffsetRange, RangeReader

_DAY_MS = 86_400_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class ArchiveRange(NamedTuple):
    """A range to archive, and the offset from which each table still needs it."""

    wanted: OffsetRange
    batches_from: int
    records_from: int


class ArchiveTask(NamedTuple):
    lake: str
    settings: FetchSettings
    work: tuple[ArchiveRange, ...]


class Faults(dict[int, str]):
    """Why batches cannot be read, by their base offsets."""

    def note(self, one: FetchedBatch, fault: CorruptBatch) -> None:
        self[one.header.base_offset] = str(fault)


class UnreadableBatch(NamedTuple):
    """Archived as it is: its bytes are in `batches`, and none of its records in `records`."""

    topic_partition: TopicPartition
    offset: int
    reason: str


class TaskResult(NamedTuple):
    files: list[NewFile]
    records: int
    bytes: int
    unreadable: list[UnreadableBatch]


def run_task(task: ArchiveTask) -> TaskResult:
    prepare_process()
    root = Path(task.lake)
    batches, records = DataFileWriter(root, BATCHES), DataFileWriter(root, RECORDS)
    reader = RangeReader(task.settings)
    count = size = 0
    unreadable: list[UnreadableBatch] = []
    try:
        for work in task.work:
            partition = work.wanted.topic_partition
            for fetched in reader.read(work.wanted):
                size += sum(len(one.data) for one in fetched)
                faults = Faults()
                since = [one._replace(since=max(one.since, work.records_from)) for one in fetched]
                for columns in decode(
                    since,
                    headers=True,
                    check_crcs=task.settings.check_crcs,
                    on_unreadable=faults.note,
                ):
                    if len(columns):
                        count += len(columns)
                        _archive_records(records, partition, columns)
                _archive_batches(batches, work, fetched, faults)
                unreadable += [UnreadableBatch(partition, *fault) for fault in faults.items()]
        return TaskResult(batches.close() + records.close(), count, size, unreadable)
    finally:
        reader.close()
        batches.abandon()
        records.abandon()


def _archive_batches(
    writer: DataFileWriter, work: ArchiveRange, fetched: Sequence[FetchedBatch], faults: Faults
) -> None:
    """A batch belongs to the range that holds its last offset."""
    wanted = work.wanted
    first = max(wanted.start, work.batches_from)
    mine = [one for one in fetched if first < one.header.next_offset <= wanted.end]
    for day, group in _by_day(mine):
        headers = [one.header for one in group]
        writer.write(
            wanted.topic_partition.topic,
            day,
            [
                pa.array([wanted.topic_partition.partition] * len(group), pa.int32()),
                pa.array([one.base_offset for one in headers], pa.int64()),
                pa.array([one.next_offset - 1 for one in headers], pa.int64()),
                _instants([one.base_timestamp for one in headers]),
                _instants([one.max_timestamp for one in headers]),
                pa.array([_codec_name(one.attributes) for one in headers], pa.string()),
                pa.array([one.record_count for one in headers], pa.int32()),
                pa.array([one.is_control for one in group], pa.bool_()),
                pa.array([one.aborted for one in group], pa.bool_()),
                _joined([one.data for one in group]),
                pa.array([faults.get(one.base_offset) for one in headers], pa.string()),
            ],
        )


def _codec_name(attributes: int) -> str:
    codec = attributes & CODEC_MASK
    return _CODECS[codec] if codec < len(_CODECS) else str(codec)


def _joined(parts: Sequence[Buffer]) -> Any:
    """A binary array of them with one copy of all bytes; pa.array would make an object of each."""
    edges = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers)


def _by_day(fetched: Iterable[FetchedBatch]) -> Iterator[tuple[int, list[FetchedBatch]]]:
    days: dict[int, list[FetchedBatch]] = {}
    for one in fetched:
        days.setdefault(_clipped(one.header.max_timestamp) // _DAY_MS, []).append(one)
    yield from days.items()


def _clipped(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, FIRST_MS), LAST_MS)


def _instants(timestamps_ms: list[int]) -> Any:
    micros = [_clipped(one) * 1000 for one in timestamps_ms]
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", tz="UTC"))


def _archive_records(writer: DataFileWriter, partition: TopicPartition, columns: Columns) -> None:
    days = columns.timestamp_ms // _DAY_MS
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(columns), partition.partition, np.int32)),
            pa.array(columns.offset),
            timestamps(columns),
            pa.array(columns.timestamp_type),
            columns.key,
            columns.value,
            columns.headers,
        ],
        schema=file_schema(RECORDS),
    )
    first = int(days[0])
    if (days == first).all():
        writer.write_batch(partition.topic, first, rows)
        return
    for day in np.unique(days).tolist():
        chosen = pa.array(np.flatnonzero(days == day))
        writer.write_batch(partition.topic, int(day), rows.take(chosen))
