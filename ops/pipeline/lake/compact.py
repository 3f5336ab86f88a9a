"""Compaction of a lake: few large sorted files instead of many small ones, and no old versions.

For each topic and day, the files written since the last compaction and the compacted files that are
still small are merged into files sorted by partition and offset, of about the target size. One
Delta commit replaces the old files with the new ones, so a reader sees either. Files that only old
versions need are deleted after their retention: a query that began earlier is not disturbed.

An archiver may add files at the same time; the next compaction merges those. Another compaction may
not: each commit carries the next version of one Delta application, and delta-rs refuses the second
of two. It would not refuse to remove a file that has been removed already.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction

from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.commits import CommitConflict, CommitRefused, add_actions, commit_on
from moldau.ops.pipeline.lake.compact_task import PREFIX, RewriteTask, divide, rewrite
from moldau.ops.pipeline.lake.data_files import NewFile
from moldau.ops.pipeline.lake.schemas import TABLES
from moldau.ops.pipeline.lake.tables import Lake, hold_lock
from moldau.ops.pipeline.progress import Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("moldau.pipeline")

APPLICATION = "moldau-compact"
TARGET_BYTES = 128 << 20
RETENTION_HOURS = 168
# Files that no version knows may be those an archiver is about to commit.
MIN_STRAY_HOURS = 24
_ROUND_BYTES = 4 << 30
_TRIES = 5
_EPOCH = datetime.date(1970, 1, 1)


class DataFile(NamedTuple):
    path: str
    size: int
    rows: int
    unpacked: int

    @property
    def is_sorted(self) -> bool:
        return self.path.rpartition("/")[2].startswith(PREFIX)


class FileGroup(NamedTuple):
    """Files of one topic and day, to be merged into sorted files that do not overlap."""

    table: str
    topic: str
    date: datetime.date
    files: tuple[DataFile, ...]

    @property
    def unpacked(self) -> int:
        return sum(file.unpacked for file in self.files)


class CompactionOutcome(NamedTuple):
    table: str
    before: int
    after: int
    rows: int
    deleted: int


class Compactor:
    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        *,
        target_bytes: int = TARGET_BYTES,
        retention_hours: int = RETENTION_HOURS,
        keep_versions: int = 1,
        meter: Meter | None = None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._target = target_bytes
        self._retention_hours = retention_hours
        self._keep_versions = keep_versions
        self._meter = meter or Meter("compact")

    def run(self) -> list[CompactionOutcome]:
        """Both tables. Raises PipelineError."""
        with hold_lock(self._lake.state_path / "compact.lock", f"compaction of {self._lake.path}"):
            return [self._table(table) for table in TABLES]

    def _table(self, table: str) -> CompactionOutcome:
        before = after = rows = 0
        failed = 0
        # Files added from now on are left for the next compaction, or this one might never end.
        waiting = _rounds(self.plan(table))
        while groups := next(waiting, None):
            try:
                made = self._rewrite(table, groups)
            except CommitConflict as error:
                failed += 1
                if failed == _TRIES:
                    raise PipelineError(
                        f"{self._lake.table_path(table)}: another program keeps changing this "
                        f"table ({error}); run it again when that has ended"
                    ) from error
                logger.info("compaction of %s: %s; retrying", table, error)
                waiting = _rounds(self.plan(table))
                continue
            before += sum(len(group.files) for group in groups)
            after += len(made)
            rows += sum(file.rows for file in made)
        return CompactionOutcome(table, before, after, rows, self._vacuum(table))

    # --- planning ---

    def plan(self, table: str) -> list[FileGroup]:
        opened = self._lake.open(table)
        found: dict[tuple[str, datetime.date], list[DataFile]] = {}
        actions = pa.table(opened.get_add_actions(flatten=True))
        columns = ("path", "size_bytes", "num_records", "partition.topic", "partition.date")
        for path, size, rows, topic, date in zip(
            *(actions.column(name).to_pylist() for name in columns), strict=True
        ):
            found.setdefault((topic, date), []).append(DataFile(path, size, rows, size))
        groups = []
        for (topic, date), files in sorted(found.items()):
            new = [file for file in files if not file.is_sorted]
            small = [file for file in files if file.is_sorted and self._is_small(table, file)]
            if new or len(small) > 1:
                measured = [self._measured(table, file) for file in sorted(new + small)]
                groups.append(FileGroup(table, topic, date, tuple(measured)))
        return groups

    def _is_small(self, table: str, file: DataFile) -> bool:
        return self._measured(table, file).unpacked < self._target // 2

    def _measured(self, table: str, file: DataFile) -> DataFile:
        """Add the uncompressed size, from the footer of the file."""
        footer = pq.read_metadata(self._lake.table_path(table) / file.path)
        groups = range(footer.num_row_groups)
        return file._replace(unpacked=sum(footer.row_group(at).total_byte_size for at in groups))

    def _tasks(self, groups: Sequence[FileGroup]) -> list[RewriteTask]:
        whole_groups = [
            RewriteTask(
                str(self._lake.path),
                group.table,
                group.topic,
                (group.date - _EPOCH).days,
                tuple(file.path for file in group.files),
            )
            for group in groups
        ]
        counts = [-(-group.unpacked // self._target) for group in groups]
        counted = list(zip(whole_groups, counts, strict=True))
        large = [(task, count) for task, count in counted if count > 1]
        tasks = [task for task, count in counted if count <= 1]
        if large:
            context = self._spark.sparkContext
            divided = context.parallelize(large, len(large)).map(lambda one: divide(*one))
            tasks += [task for pieces in divided.collect() for task in pieces]
        return tasks

    # --- merging ---

    def _rewrite(self, table: str, groups: Sequence[FileGroup]) -> list[NewFile]:
        opened = self._lake.open(table)
        old = {file.path: (group, file) for group in groups for file in group.files}
        active = set(pa.table(opened.get_add_actions()).column("path").to_pylist())
        if not old.keys() <= active:
            raise CommitConflict("files to be merged were removed")
        tasks = self._tasks(groups)
        unpacked = sum(group.unpacked for group in groups)
        self._meter.say(f"{table}: merging {len(old):,} files, {unpacked / 1e6:,.1f} MB")
        written_by_task = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(rewrite)
        made = [file for files in written_by_task.collect() for file in files]
        wanted = sum(file.rows for _, file in old.values())
        written = sum(file.rows for file in made)
        if wanted != written:
            self._discard(made)
            raise PipelineError(
                f"{self._lake.table_path(table)}: {wanted:,} rows were to be merged and "
                f"{written:,} were read; nothing was changed. Are files of the lake damaged?"
            )
        self._commit(table, opened, old, made)
        self._meter.advance(written, unpacked, 0)
        return made

    def _commit(
        self,
        table: str,
        opened: DeltaTable,
        old: dict[str, tuple[FileGroup, DataFile]],
        made: Sequence[NewFile],
    ) -> None:
        # Not changed data: the rows are the same, streams of the table need not read them again.
        actions = add_actions(made, data_change=False)
        now_ms = int(time.time() * 1000)
        for path, (group, file) in old.items():
            values: dict[str, str | None] = {
                "topic": group.topic,
                "date": group.date.isoformat(),
            }
            actions.append(RemoveAction(path, False, now_ms, file.size, values))
        version = (opened.transaction_version(APPLICATION) or 0) + 1
        metadata = {"moldau.compacted": str(len(old))}
        table_path = self._lake.table_path(table)
        try:
            commit_on(opened, table_path, actions, {APPLICATION: version}, metadata, retries=50)
        except CommitRefused as refused:
            self._discard(made)
            if isinstance(refused, CommitConflict):
                raise
            raise PipelineError(
                f"{table_path}: the commit failed, nothing was changed: {refused}; is the disk "
                "full?"
            ) from refused

    def _discard(self, made: Sequence[NewFile]) -> None:
        for file in made:
            (self._lake.table_path(file.table) / file.path).unlink(missing_ok=True)

    def _vacuum(self, table: str) -> int:
        opened = self._lake.open(table)
        newest = opened.version()
        kept = list(range(max(newest - self._keep_versions + 1, 0), newest + 1))
        hours = self._retention_hours
        deleted: set[str] = set()
        try:
            for full, age in ((False, hours), (True, max(hours, MIN_STRAY_HOURS))):
                if opened.vacuum(age, True, False, full=full, keep_versions=kept):
                    deleted.update(opened.vacuum(age, False, False, full=full, keep_versions=kept))
            if deleted:
                opened.create_checkpoint()
        except (OSError, DeltaError) as error:
            raise PipelineError(
                f"{self._lake.table_path(table)}: files are merged, but old ones could not be "
                f"deleted: {error}; may this user delete them? Run it again"
            ) from error
        return len(deleted)


def _rounds(groups: Sequence[FileGroup]) -> Iterator[list[FileGroup]]:
    """Groups in portions, one for each commit."""
    chosen: list[FileGroup] = []
    size = 0
    for group in groups:
        if chosen and size + group.unpacked > _ROUND_BYTES:
            yield chosen
            chosen, size = [], 0
        chosen.append(group)
        size += group.unpacked
    if chosen:
        yield chosen
