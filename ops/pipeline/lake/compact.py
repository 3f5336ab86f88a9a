"""Compaction of a lake: few large sorted files instead of many small ones, and no old versions.

For each topic and day the files that are new since the last compaction, and the compacted ones that
are still small, become files sorted by partition and offset, each about as large as wanted. Old and
new files change places in one Delta commit: a reader sees the old ones or the new ones, whole. What
old versions alone still need is deleted when it is past its retention, so that a query which began
before goes on undisturbed.

An archiver may add files meanwhile; they are left for the next time. Another compaction may not:
each commit carries the next version of one Delta application, and delta-rs refuses the second of
two. It would not refuse the removal of a file that is removed already.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from broker.process import prepare_process
from ops.pipeline.archive.task import Writer, file_schema
from ops.pipeline.errors import PipelineError
from ops.pipeline.lake.lock import only_one
from ops.pipeline.lake.tables import (
    BATCHES,
    OWN,
    PARTITIONED_BY,
    RECORDS,
    TABLES,
    Lake,
    NewFile,
    sync_directory,
)
from ops.pipeline.progress import Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("moldau.pipeline")

SORTED_BY = {BATCHES: ("partition", "base_offset"), RECORDS: ("partition", "offset")}
# Tells files that are sorted already from those that archivers wrote.
PREFIX = "sorted-"
APPLICATION = "moldau-compact"
TARGET_BYTES = 128 << 20
RETENTION_HOURS = 168
# Files that no version knows may be an archiver's that it is about to commit.
LEAST_HOURS_OF_STRAYS = 24
_ROUND_BYTES = 4 << 30
_TRIES = 5
_EPOCH = datetime.date(1970, 1, 1)

Key = tuple[int, int]  # partition and offset


class File(NamedTuple):
    path: str
    size: int
    rows: int
    unpacked: int

    @property
    def is_sorted(self) -> bool:
        return self.path.rpartition("/")[2].startswith(PREFIX)


class Group(NamedTuple):
    """Files of one topic and day that are to become one sequence of sorted files."""

    table: str
    topic: str
    date: datetime.date
    files: tuple[File, ...]

    @property
    def unpacked(self) -> int:
        return sum(file.unpacked for file in self.files)


class Cut(NamedTuple):
    """One file to be made: the rows of a group from `low` up to and without `high`."""

    lake: str
    table: str
    topic: str
    day: int
    paths: tuple[str, ...]
    low: Key | None = None
    high: Key | None = None


class Outcome(NamedTuple):
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

    def run(self) -> list[Outcome]:
        """Both tables. Raises PipelineError."""
        with only_one(self._lake.path / OWN / "compact.lock", f"compaction of {self._lake.path}"):
            return [self._table(table) for table in TABLES]

    def _table(self, table: str) -> Outcome:
        before = after = rows = 0
        failed = 0
        # What an archiver adds from now on is left for the next time, or there would be no end.
        waiting = _rounds(self.plan(table))
        while groups := next(waiting, None):
            try:
                made = self._rewrite(table, groups)
            except CommitFailedError as error:
                failed += 1
                if failed == _TRIES:
                    raise PipelineError(
                        f"{self._lake.table_path(table)}: another program changes this table all "
                        f"the time ({error}); run it again when that has ended"
                    ) from error
                log.info("compaction of %s: %s; trying again", table, error)
                waiting = _rounds(self.plan(table))
                continue
            before += sum(len(group.files) for group in groups)
            after += len(made)
            rows += sum(file.rows for file in made)
        return Outcome(table, before, after, rows, self._vacuum(table))

    # --- what is to be done ---

    def plan(self, table: str) -> list[Group]:
        opened = self._lake.open(table)
        found: dict[tuple[str, datetime.date], list[File]] = {}
        actions = pa.table(opened.get_add_actions(flatten=True))
        columns = ("path", "size_bytes", "num_records", "partition.topic", "partition.date")
        for path, size, rows, topic, date in zip(
            *(actions.column(name).to_pylist() for name in columns), strict=True
        ):
            found.setdefault((topic, date), []).append(File(path, size, rows, size))
        groups = []
        for (topic, date), files in sorted(found.items()):
            new = [file for file in files if not file.is_sorted]
            small = [file for file in files if file.is_sorted and self._is_small(table, file)]
            if new or len(small) > 1:
                measured = [self._measured(table, file) for file in sorted(new + small)]
                groups.append(Group(table, topic, date, tuple(measured)))
        return groups

    def _is_small(self, table: str, file: File) -> bool:
        return self._measured(table, file).unpacked < self._target // 2

    def _measured(self, table: str, file: File) -> File:
        """With its size in memory; compressed files say little about that."""
        footer = pq.read_metadata(self._lake.table_path(table) / file.path)
        groups = range(footer.num_row_groups)
        return file._replace(unpacked=sum(footer.row_group(at).total_byte_size for at in groups))

    def _cuts(self, groups: Sequence[Group]) -> list[Cut]:
        whole = [
            Cut(
                str(self._lake.path),
                group.table,
                group.topic,
                (group.date - _EPOCH).days,
                tuple(file.path for file in group.files),
            )
            for group in groups
        ]
        counts = [-(-group.unpacked // self._target) for group in groups]
        large = [(cut, count) for cut, count in zip(whole, counts, strict=True) if count > 1]
        cuts = [cut for cut, count in zip(whole, counts, strict=True) if count <= 1]
        if large:
            context = self._spark.sparkContext
            divided = context.parallelize(large, len(large)).map(lambda one: divide(*one))
            cuts += [cut for pieces in divided.collect() for cut in pieces]
        return cuts

    # --- doing it ---

    def _rewrite(self, table: str, groups: Sequence[Group]) -> list[NewFile]:
        opened = self._lake.open(table)
        old = {file.path: (group, file) for group in groups for file in group.files}
        active = set(pa.table(opened.get_add_actions()).column("path").to_pylist())
        if not old.keys() <= active:
            raise CommitFailedError("files that were to be merged are gone")
        cuts = self._cuts(groups)
        unpacked = sum(group.unpacked for group in groups)
        self._meter.say(f"{table}: {len(old):,} files, {unpacked / 1e6:,.1f} MB, are being merged")
        tasks = self._spark.sparkContext.parallelize(cuts, len(cuts)).map(rewrite_cut)
        made = [file for files in tasks.collect() for file in files]
        wanted = sum(file.rows for _, file in old.values())
        written = sum(file.rows for file in made)
        if wanted != written:
            self._discard(made)
            raise PipelineError(
                f"{self._lake.table_path(table)}: {wanted:,} rows were to be merged and "
                f"{written:,} were read; nothing was changed. Are files of the lake damaged?"
            )
        try:
            self._commit(table, opened, old, made)
        except CommitFailedError:
            self._discard(made)
            raise
        self._meter.advance(written, unpacked, 0)
        return made

    def _commit(
        self,
        table: str,
        opened: DeltaTable,
        old: dict[str, tuple[Group, File]],
        made: Sequence[NewFile],
    ) -> None:
        now_ms = int(time.time() * 1000)
        # The rows are the same as before: streams that follow the table need not read them again.
        actions: list[Any] = [
            AddAction(one.path, one.size, one.partition_values, now_ms, False, one.stats)
            for one in made
        ]
        for path, (group, file) in old.items():
            values: dict[str, str | None] = {
                "topic": group.topic,
                "date": group.date.isoformat(),
            }
            actions.append(RemoveAction(path, False, now_ms, file.size, values))
        version = (opened.transaction_version(APPLICATION) or 0) + 1
        properties = CommitProperties(
            custom_metadata={"moldau.compacted": str(len(old))},
            max_commit_retries=50,
            app_transactions=[Transaction(APPLICATION, version)],
        )
        try:
            opened.create_write_transaction(
                actions, "append", opened.schema(), PARTITIONED_BY, commit_properties=properties
            )
        except CommitFailedError:
            raise
        except (OSError, DeltaError) as error:
            self._discard(made)
            raise PipelineError(
                f"{self._lake.table_path(table)}: the commit failed, nothing was changed: {error}; "
                "is the disk full?"
            ) from error
        # Before any of the old files goes, this has to be on the disk.
        sync_directory(
            self._lake.table_path(table) / "_delta_log",
            with_file=f"{self._lake.open(table).version():020}.json",
        )

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
            for full, age in ((False, hours), (True, max(hours, LEAST_HOURS_OF_STRAYS))):
                if opened.vacuum(age, True, False, full=full, keep_versions=kept):
                    deleted.update(opened.vacuum(age, False, False, full=full, keep_versions=kept))
            if deleted:
                opened.create_checkpoint()
        except (OSError, DeltaError) as error:
            raise PipelineError(
                f"{self._lake.table_path(table)}: files are merged, but old ones could not be "
                f"deleted: {error}; may this user delete there? Run it again"
            ) from error
        return len(deleted)


def _rounds(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """As many groups as are committed at once."""
    chosen: list[Group] = []
    size = 0
    for group in groups:
        if chosen and size + group.unpacked > _ROUND_BYTES:
            yield chosen
            chosen, size = [], 0
        chosen.append(group)
        size += group.unpacked
    if chosen:
        yield chosen


# --- on executors ---


def divide(cut: Cut, count: int) -> list[Cut]:
    """The same in about so many pieces of equally many rows; equal keys stay together."""
    partition, offset = SORTED_BY[cut.table]
    keys = _dataset(cut).to_table(columns=[partition, offset])
    partitions, offsets = (keys.column(name).to_numpy() for name in (partition, offset))
    order = np.lexsort((offsets, partitions))
    edges = [len(order) * at // count for at in range(1, count)]
    found = {(int(partitions[order[at]]), int(offsets[order[at]])) for at in edges}
    bounds: list[Key | None] = [None, *sorted(found), None]
    return [cut._replace(low=low, high=high) for low, high in itertools.pairwise(bounds)]


def rewrite_cut(cut: Cut) -> list[NewFile]:
    prepare_process()
    partition, offset = SORTED_BY[cut.table]
    wanted = None
    if cut.low is not None:
        wanted = ~_is_below(partition, offset, cut.low)
    if cut.high is not None:
        below = _is_below(partition, offset, cut.high)
        wanted = below if wanted is None else wanted & below
    rows = _dataset(cut).to_table(filter=wanted)
    rows = rows.sort_by([(partition, "ascending"), (offset, "ascending")])
    writer = Writer(Path(cut.lake), cut.table, PREFIX)
    try:
        # In pieces, so that row groups are as large as elsewhere and readers can skip some.
        pieces = max(rows.nbytes // (8 << 20), 1)
        size = max(rows.num_rows // pieces, 1)
        for batch in rows.to_batches(max_chunksize=size):
            writer.write_batch(cut.topic, cut.day, batch)
        return writer.close()
    finally:
        writer.abandon()


def _dataset(cut: Cut) -> Any:
    table = Path(cut.lake) / cut.table
    paths = [str(table / path) for path in cut.paths]
    return ds.dataset(paths, schema=file_schema(cut.table), format="parquet")


def _is_below(partition: str, offset: str, key: Key) -> Any:
    at = pc.field(partition)
    return (at < key[0]) | ((at == key[0]) & (pc.field(offset) < key[1]))
