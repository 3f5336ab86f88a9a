"""A task of the archiver: reads ranges of offsets, writes Parquet files into the lake.

Runs on executors. The files are known to no table until the driver commits them; what a task that
failed left behind is garbage for `vacuum`. Every name is new, so tries never meet.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.process import prepare_process
from broker.wire.batch import CODEC_MASK, Buffer
from ops.client import TopicPartition
from ops.pipeline.lake.tables import BATCHES, RECORDS, SCHEMAS, NewFile, stats_json, sync_directory
from ops.pipeline.source.data_source import timestamps
from ops.pipeline.source.decode import FIRST_MS, LAST_MS, Columns, Fetched, decode
from ops.pipeline.source.fetch import FetchSettings, Range, RangeReader

_DAY_MS = 86_400_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ROW_GROUP_BYTES = 32 << 20
_FILE_BYTES = 512 << 20
_MOST_BUFFERED = 128 << 20
# Bytes of batches are compressed by their producers mostly; keys and values seldom repeat.
_FORMATS: dict[str, dict[str, Any]] = {
    BATCHES: {"compression": "none", "use_dictionary": ["codec"]},
    RECORDS: {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["timestampType", "partition"],
    },
}
_RANGED = {
    BATCHES: ("partition", "base_offset", "last_offset", "max_timestamp"),
    RECORDS: ("partition", "offset", "timestamp"),
}


class Work(NamedTuple):
    """A range to archive; each table takes only what it does not hold yet."""

    wanted: Range
    batches_from: int
    records_from: int


class Task(NamedTuple):
    lake: str
    settings: FetchSettings
    work: tuple[Work, ...]


class Done(NamedTuple):
    files: list[NewFile]
    records: int
    bytes: int


def run_task(task: Task) -> Done:
    prepare_process()
    root = Path(task.lake)
    batches, records = Writer(root, BATCHES), Writer(root, RECORDS)
    reader = RangeReader(task.settings)
    count = size = 0
    try:
        for work in task.work:
            place = work.wanted.place
            for fetched in reader.read(work.wanted):
                size += sum(len(one.data) for one in fetched)
                _archive_batches(batches, work, fetched)
                since = [one._replace(since=max(one.since, work.records_from)) for one in fetched]
                for columns in decode(since, headers=True, check_crcs=task.settings.check_crcs):
                    if len(columns):
                        count += len(columns)
                        _archive_records(records, place, columns)
        return Done(batches.close() + records.close(), count, size)
    finally:
        reader.close()
        batches.abandon()
        records.abandon()


def _archive_batches(writer: Writer, work: Work, fetched: Sequence[Fetched]) -> None:
    """A batch belongs to the range that holds its last offset."""
    wanted = work.wanted
    first = max(wanted.start, work.batches_from)
    mine = [one for one in fetched if first < one.header.next_offset <= wanted.end]
    for day, group in _by_day(mine):
        headers = [one.header for one in group]
        writer.write(
            wanted.place.topic,
            day,
            [
                pa.array([wanted.place.partition] * len(group), pa.int32()),
                pa.array([one.base_offset for one in headers], pa.int64()),
                pa.array([one.next_offset - 1 for one in headers], pa.int64()),
                _instants([one.base_timestamp for one in headers]),
                _instants([one.max_timestamp for one in headers]),
                pa.array([_CODECS[one.attributes & CODEC_MASK] for one in headers], pa.string()),
                pa.array([one.record_count for one in headers], pa.int32()),
                pa.array([one.is_control for one in group], pa.bool_()),
                pa.array([one.aborted for one in group], pa.bool_()),
                _joined([one.data for one in group]),
            ],
        )


def _joined(parts: Sequence[Buffer]) -> Any:
    """A binary array of them: one copy of all bytes, where pa.array makes one object each."""
    edges = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers)


def _by_day(fetched: Iterable[Fetched]) -> Iterator[tuple[int, list[Fetched]]]:
    days: dict[int, list[Fetched]] = {}
    for one in fetched:
        days.setdefault(_clipped(one.header.max_timestamp) // _DAY_MS, []).append(one)
    yield from days.items()


def _clipped(timestamp_ms: int) -> int:
    return min(max(timestamp_ms, FIRST_MS), LAST_MS)


def _instants(timestamps_ms: list[int]) -> Any:
    micros = [_clipped(one) * 1000 for one in timestamps_ms]
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", tz="UTC"))


def _archive_records(writer: Writer, place: TopicPartition, columns: Columns) -> None:
    days = columns.timestamp_ms // _DAY_MS
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(columns), place.partition, np.int32)),
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
        writer.write_batch(place.topic, first, rows)
        return
    for day in np.unique(days).tolist():
        chosen = pa.array(np.flatnonzero(days == day))
        writer.write_batch(place.topic, int(day), rows.take(chosen))


def file_schema(table: str) -> Any:
    """Without the columns that Delta keeps in the path."""
    return pa.schema([field for field in SCHEMAS[table] if field.name not in ("topic", "date")])


class Writer:
    """The files of one table that a task writes: one at a time for each topic and day."""

    def __init__(self, root: Path, table: str, prefix: str = "") -> None:
        self._root = root / table
        self._table = table
        self._prefix = prefix
        self._open: dict[tuple[str, int], _File] = {}
        self._buffered = 0
        self._done: list[NewFile] = []

    def write(self, topic: str, day: int, columns: list[Any]) -> None:
        schema = file_schema(self._table)
        self.write_batch(topic, day, pa.RecordBatch.from_arrays(columns, schema=schema))

    def write_batch(self, topic: str, day: int, rows: Any) -> None:
        key = topic, day
        file = self._open.get(key)
        if file is None:
            file = self._open[key] = _File(self._root, self._table, topic, day, self._prefix)
        self._buffered += file.add(rows)
        if file.buffered >= _ROW_GROUP_BYTES:
            self._buffered -= file.flush()
        elif self._buffered > _MOST_BUFFERED:
            self._buffered -= max(self._open.values(), key=lambda one: one.buffered).flush()
        if file.written >= _FILE_BYTES:
            self._buffered -= file.buffered
            self._done.append(self._open.pop(key).close())

    def close(self) -> list[NewFile]:
        self._done += [file.close() for file in self._open.values()]
        self._open.clear()
        done, self._done = self._done, []
        return done

    def abandon(self) -> None:
        """After a fault: nobody will ever know these files."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()


class _File:
    def __init__(self, root: Path, table: str, topic: str, day: int, prefix: str) -> None:
        date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
        self._values = {"topic": topic, "date": date.isoformat()}
        self._name = f"topic={topic}/date={date.isoformat()}/{prefix}{uuid.uuid4()}.parquet"
        self._table = table
        self._path = root / self._name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            self._path,
            file_schema(table),
            write_statistics=list(_RANGED[table]),
            **_FORMATS[table],
        )
        self._pending: list[Any] = []
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}
        self._rows = 0
        self.buffered = 0
        self.written = 0

    def add(self, rows: Any) -> int:
        """Gives the bytes that are held back now."""
        self._pending.append(rows)
        self.buffered += rows.nbytes
        size: int = rows.nbytes
        return size

    def flush(self) -> int:
        """Gives the bytes that are not held back any more."""
        if not self._pending:
            return 0
        rows = pa.Table.from_batches(self._pending)
        self._note_range(rows)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        freed = self.buffered
        self.written += freed
        self._pending, self.buffered = [], 0
        return freed

    def _note_range(self, rows: Any) -> None:
        self._rows += rows.num_rows
        for name in _RANGED[self._table]:
            found = pc.min_max(rows.column(name)).as_py()
            lowest, highest = found["min"], found["max"]
            self._lowest[name] = min(self._lowest.get(name, lowest), lowest)
            self._highest[name] = max(self._highest.get(name, highest), highest)

    def close(self) -> NewFile:
        self.flush()
        self._writer.close()
        sync_directory(self._path.parent, self._path.name)
        for directory in list(self._path.parents)[1:3]:  # of the topic, and of the table
            sync_directory(directory)
        return NewFile(
            self._table,
            self._name,
            os.path.getsize(self._path),
            self._values,
            stats_json(self._rows, _told(self._lowest), _told(self._highest)),
            self._rows,
        )

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """Timestamps as Delta writes them; Kafka's have milliseconds, so nothing is cut off."""
    return {
        name: value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if isinstance(value, datetime.datetime)
        else value
        for name, value in values.items()
    }
