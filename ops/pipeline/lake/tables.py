"""A lake: two Delta tables in a directory, how far they hold each topic, commits, locks.

    LAKE/batches    a row per RecordBatch, its bytes as the broker stored them
    LAKE/records    a row per record, decoded
    LAKE/_moldau    locks, the archiver's checkpoint, replay jobs

Both tables are partitioned by topic and date (UTC, of the record's timestamp; of a batch, its
newest).

Exactly once: each commit carries, for every topic partition in it, a Delta transaction whose
application is the partition (by the topic's id, so a topic that was deleted and created again is
another one) and whose version is the offset up to which the table holds it. The archiver opens a
table, reads these versions, skips what is there, and commits on the table that it opened: of two
archivers that read the same versions, the second commit is refused (see commits.py).
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.commits import CommitConflict, CommitRefused, add_actions, commit_on
from moldau.ops.pipeline.lake.data_files import NewFile, sync_directory
from moldau.ops.pipeline.lake.schemas import PARTITIONED_BY, SCHEMAS, TABLES


class Lake:
    """One lake directory. Raises PipelineError when it cannot be used."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()

    def table_path(self, table: str) -> Path:
        return self.path / table

    @property
    def state_path(self) -> Path:
        """The pipeline's own files in a lake: locks, checkpoints, replay jobs."""
        return self.path / "_moldau"

    @property
    def checkpoint(self) -> Path:
        return self.state_path / "checkpoint"

    def create(self) -> None:
        """Create the tables and directories that do not exist yet."""
        try:
            self.state_path.mkdir(parents=True, exist_ok=True)
            for table in TABLES:
                DeltaTable.create(self.table_path(table), SCHEMAS[table], "ignore", PARTITIONED_BY)
                self._add_columns(table)
                sync_directory(self.table_path(table))
            sync_directory(self.path)
        except (OSError, DeltaError) as error:
            raise PipelineError(
                f"the lake {self.path} cannot be written: {error}; give a directory in which this "
                "user may write (on a cluster: one that every worker sees under the same path)"
            ) from None

    def _add_columns(self, table: str) -> None:
        """Columns that a lake of an older version lacks; they are null in its files."""
        opened = self.open(table)
        known = {field.name for field in opened.schema().fields}
        missing = [field for field in Schema.from_arrow(SCHEMAS[table]).fields
                   if field.name not in known]  # fmt: skip
        if missing:
            opened.alter.add_columns(missing)

    def check(self) -> None:
        """Check that both tables exist, for commands that only read."""
        for table in TABLES:
            self.open(table)

    def open(self, table: str) -> DeltaTable:
        try:
            return DeltaTable(self.table_path(table))
        except TableNotFoundError:
            raise PipelineError(
                f"there is no table {table} in {self.path}; `moldau pipeline archive` creates it"
            ) from None

    def commit(
        self,
        table: str,
        opened: DeltaTable,
        files: Sequence[NewFile],
        versions: Mapping[str, int],
        metadata: Mapping[str, str],
    ) -> int:
        """Add files and set versions in one durable commit, on the table as it was opened.

        Returns the version of the commit. Raises PipelineError, also when another archiver has
        committed one of the applications of `versions` since the table was opened.
        """
        path = self.table_path(table)
        try:
            actions = add_actions(files, data_change=True)
            return commit_on(opened, path, actions, versions, metadata, retries=20)
        except CommitConflict as conflict:
            raise PipelineError(
                f"{path}: another program has committed to this table since it was read "
                f"({conflict}), nothing was added; a lake has one archiver: stop the other one and "
                "run this one again, it resumes where the lake ends"
            ) from conflict
        except CommitRefused as refused:
            raise PipelineError(
                f"{path}: the commit failed, nothing was added: {refused}; is the disk full, or "
                "may this user not write there? Run it again afterwards"
            ) from refused


def held_offsets(
    opened: DeltaTable, applications: Mapping[TopicPartition, str]
) -> dict[TopicPartition, int]:
    """The offset up to which a table holds each partition; only of those it holds."""
    found = {}
    for partition, application in applications.items():
        version = opened.transaction_version(application)
        if version is not None:
            found[partition] = version
    return found


def application_of(topic_id: bytes, partition: int) -> str:
    return f"moldau-archive/{topic_id.hex()}/{partition}"


@contextmanager
def hold_lock(
    path: Path, what: str, remedy: str = "wait for it, or stop it first"
) -> Iterator[None]:
    """Hold the lock file `path`, which the system releases when the process ends. Raises
    PipelineError when another process is doing `what`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise PipelineError(
            f"{path} cannot be written: {error.strerror or error}; give a lake in which this user "
            "may write"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise PipelineError(f"{what} is already being done by {owner}; {remedy}") from None
        file.seek(0)
        file.truncate()
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {when}\n")
        file.flush()
        yield
