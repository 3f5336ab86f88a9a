"""Data files of a lake, for executors: Parquet, part of no table until the driver commits them.

Every file name is new, so two attempts of a task never write the same file; compaction deletes what
a failed one leaves behind.
"""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, file_schema

_ROW_GROUP_BYTES = 32 << 20
_FILE_BYTES = 512 << 20
_MAX_BUFFERED_BYTES = 128 << 20
# Batches are mostly compressed by their producers; keys and values seldom repeat.
_FORMATS: dict[str, dict[str, Any]] = {
    BATCHES: {"compression": "none", "use_dictionary": ["codec"]},
    RECORDS: {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["timestampType", "partition"],
    },
}
_STATISTICS = {
    BATCHES: ("partition", "base_offset", "last_offset", "max_timestamp"),
    RECORDS: ("partition", "offset", "timestamp"),
}


class NewFile(NamedTuple):
    """A data file that is not part of a table yet."""

    table: str
    path: str
    size: int
    partition_values: dict[str, str]
    stats: str
    rows: int


class DataFileWriter:
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
        elif self._buffered > _MAX_BUFFERED_BYTES:
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
        """Delete files that were not closed: no commit will name them."""
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
            write_statistics=list(_STATISTICS[table]),
            **_FORMATS[table],
        )
        self._pending: list[Any] = []
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}
        self._rows = 0
        self.buffered = 0
        self.written = 0

    def add(self, rows: Any) -> int:
        """Returns the bytes buffered by this."""
        self._pending.append(rows)
        self.buffered += rows.nbytes
        size: int = rows.nbytes
        return size

    def flush(self) -> int:
        """Returns the bytes that were buffered."""
        if not self._pending:
            return 0
        rows = pa.Table.from_batches(self._pending)
        self._update_statistics(rows)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        freed = self.buffered
        self.written += freed
        self._pending, self.buffered = [], 0
        return freed

    def _update_statistics(self, rows: Any) -> None:
        self._rows += rows.num_rows
        for name in _STATISTICS[self._table]:
            found = pc.min_max(rows.column(name)).as_py()
            lowest, highest = found["min"], found["max"]
            self._lowest[name] = min(self._lowest.get(name, lowest), lowest)
            self._highest[name] = max(self._highest.get(name, highest), highest)

    def close(self) -> NewFile:
        self.flush()
        self._writer.close()
        sync_directory(self._path.parent, self._path.name)
        for directory in list(self._path.parents)[1:3]:  # the topic's and the table's
            sync_directory(directory)
        return NewFile(
            self._table,
            self._name,
            os.path.getsize(self._path),
            self._values,
            stats_json(self._rows, _delta_values(self._lowest), _delta_values(self._highest)),
            self._rows,
        )

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


def _delta_values(values: dict[str, Any]) -> dict[str, Any]:
    """Timestamps as Delta writes them; Kafka's have milliseconds, so nothing is lost."""
    return {
        name: value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if isinstance(value, datetime.datetime)
        else value
        for name, value in values.items()
    }


def stats_json(rows: int, lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> str:
    """The statistics by which Delta readers skip files."""
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": dict(lowest),
            "maxValues": dict(highest),
            "nullCount": dict.fromkeys(lowest, 0),
        }
    )


def sync_directory(path: Path, with_file: str | None = None) -> None:
    """Force a directory, and one file in it, to the disk."""
    for name in ([path / with_file] if with_file else []) + [path]:
        # A log file may have been replaced by a checkpoint.
        if name.exists():
            descriptor = os.open(name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
