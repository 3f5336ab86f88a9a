"""The lake: two Delta tables in a directory, what they hold, and how it is committed.

    LAKE/batches    a row per RecordBatch, its bytes as the broker had them
    LAKE/records    a row per record, decoded
    LAKE/_moldau    the archiver's own: its lock and its checkpoint

Both are partitioned by topic and date (UTC, of the records' timestamps; of a batch its newest).

Exactly once: each commit carries, for every partition it concerns, a Delta transaction whose
application is the partition (by the id of its topic, so a topic that was deleted and created again
is another one) and whose version is the offset up to which this table holds it. Whoever archives
asks for these versions first and leaves out what is there. delta-rs refuses two writers that commit
versions of the same application at once, but accepts a version again: so the check is ours.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from ops.client import TopicPartition
from ops.pipeline.errors import PipelineError
from ops.pipeline.source.decode import HEADERS_TYPE

BATCHES, RECORDS = "batches", "records"
TABLES = (BATCHES, RECORDS)
PARTITIONED_BY = ["topic", "date"]
OWN = "_moldau"

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
            ("control", pa.bool_()),  # a transaction's end, not records
            ("aborted", pa.bool_()),  # its transaction was; its records are not in `records`
            ("data", pa.binary()),
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


class NewFile(NamedTuple):
    """A data file that a task wrote and that no table knows yet."""

    table: str
    path: str
    size: int
    partition_values: dict[str, str]
    stats: str
    rows: int


class Lake:
    """One lake directory. Raises PipelineError when it cannot be used."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()

    def table_path(self, table: str) -> Path:
        return self.path / table

    @property
    def checkpoint(self) -> Path:
        return self.path / OWN / "checkpoint"

    def create(self) -> None:
        """Make what is missing."""
        try:
            (self.path / OWN).mkdir(parents=True, exist_ok=True)
            for table in TABLES:
                DeltaTable.create(self.table_path(table), SCHEMAS[table], "ignore", PARTITIONED_BY)
                sync_directory(self.table_path(table))
            sync_directory(self.path)
        except (OSError, DeltaError) as error:
            raise PipelineError(
                f"the lake {self.path} cannot be written: {error}; give a directory in which this "
                "user may write (on a cluster: one that every worker sees under the same path)"
            ) from None

    def check(self) -> None:
        """For those who only read: are both tables there?"""
        for table in TABLES:
            self.open(table)

    def open(self, table: str) -> DeltaTable:
        try:
            return DeltaTable(self.table_path(table))
        except TableNotFoundError:
            raise PipelineError(
                f"there is no table {table} in {self.path}; `moldau pipeline archive` makes it"
            ) from None

    def committed(
        self, table: str, applications: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, int]:
        """The offset up to which a table holds each partition; those it has none of left out."""
        opened = self.open(table)
        found = {}
        for place, application in applications.items():
            version = opened.transaction_version(application)
            if version is not None:
                found[place] = version
        return found

    def commit(
        self,
        table: str,
        files: Sequence[NewFile],
        versions: Mapping[str, int],
        metadata: Mapping[str, str],
    ) -> int:
        """Add files and raise versions at once, durably. Gives the table's version."""
        opened = self.open(table)
        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(one.path, one.size, one.partition_values, now_ms, True, one.stats)
            for one in files
        ]
        properties = CommitProperties(
            custom_metadata=dict(metadata),
            max_commit_retries=20,
            app_transactions=[Transaction(app, version) for app, version in versions.items()],
        )
        try:
            opened.create_write_transaction(
                actions,  # type: ignore[arg-type]
                "append",
                opened.schema(),
                PARTITIONED_BY,
                commit_properties=properties,
            )
        except (OSError, DeltaError) as error:
            raise PipelineError(
                f"{self.table_path(table)}: the commit failed, nothing was added: {error}; is the "
                "disk full, or does another program write this table? Run it again afterwards"
            ) from error
        version = self.open(table).version()
        # The broker may trim what we say is here: it has to be on the disk.
        sync_directory(self.table_path(table) / "_delta_log", with_file=f"{version:020}.json")
        return version


def application_of(topic_id: bytes, partition: int) -> str:
    return f"moldau-archive/{topic_id.hex()}/{partition}"


def sync_directory(path: Path, with_file: str | None = None) -> None:
    for name in ([path / with_file] if with_file else []) + [path]:
        # A log file may be in a checkpoint by now, and gone.
        if name.exists():
            descriptor = os.open(name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class Lock:
    """One archiver per lake: a lock of the operating system, gone with whoever holds it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._path = lake.path / OWN / "lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise PipelineError(
                f"the lake {self._lake.path} is being written by {owner}; there is one archiver "
                "per lake: stop that one first, or give this one a lake of its own"
            ) from None
        file.seek(0)
        file.truncate()
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {when}\n")
        file.flush()
        self._file = file
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def stats_json(rows: int, lowest: Mapping[str, Any], highest: Mapping[str, Any]) -> str:
    """What Delta readers skip files by."""
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": dict(lowest),
            "maxValues": dict(highest),
            "nullCount": dict.fromkeys(lowest, 0),
        }
    )
