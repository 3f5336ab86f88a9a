"""A task of a compaction, for executors: writes one sorted file of a group's rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds

from moldau.broker.process import prepare_process
from moldau.ops.pipeline.lake.data_files import DataFileWriter, NewFile
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, file_schema

SORTED_BY = {BATCHES: ("partition", "base_offset"), RECORDS: ("partition", "offset")}
# Tells sorted files from those that archivers wrote.
PREFIX = "sorted-"

Key = tuple[int, int]  # partition and offset


class RewriteTask(NamedTuple):
    """One file to write: the rows of a group from `low` up to but not including `high`."""

    lake: str
    table: str
    topic: str
    day: int
    paths: tuple[str, ...]
    low: Key | None = None
    high: Key | None = None


def divide(task: RewriteTask, count: int) -> list[RewriteTask]:
    """The task in about `count` parts of equally many rows; equal keys stay together."""
    partition, offset = SORTED_BY[task.table]
    keys = _dataset(task).to_table(columns=[partition, offset])
    partitions, offsets = (keys.column(name).to_numpy() for name in (partition, offset))
    order = np.lexsort((offsets, partitions))
    edges = [len(order) * at // count for at in range(1, count)]
    found = {(int(partitions[order[at]]), int(offsets[order[at]])) for at in edges}
    bounds: list[Key | None] = [None, *sorted(found), None]
    return [task._replace(low=low, high=high) for low, high in itertools.pairwise(bounds)]


def rewrite(task: RewriteTask) -> list[NewFile]:
    prepare_process()
    partition, offset = SORTED_BY[task.table]
    wanted = None
    if task.low is not None:
        wanted = ~_below(partition, offset, task.low)
    if task.high is not None:
        below = _below(partition, offset, task.high)
        wanted = below if wanted is None else wanted & below
    rows = _dataset(task).to_table(filter=wanted)
    rows = rows.sort_by([(partition, "ascending"), (offset, "ascending")])
    writer = DataFileWriter(Path(task.lake), task.table, PREFIX)
    try:
        # In pieces, so that row groups stay small enough for readers to skip some.
        pieces = max(rows.nbytes // (8 << 20), 1)
        size = max(rows.num_rows // pieces, 1)
        for batch in rows.to_batches(max_chunksize=size):
            writer.write_batch(task.topic, task.day, batch)
        return writer.close()
    finally:
        writer.abandon()


def _dataset(task: RewriteTask) -> Any:
    table = Path(task.lake) / task.table
    paths = [str(table / path) for path in task.paths]
    return ds.dataset(paths, schema=file_schema(task.table), format="parquet")


def _below(partition: str, offset: str, key: Key) -> Any:
    at = pc.field(partition)
    return (at < key[0]) | ((at == key[0]) & (pc.field(offset) < key[1]))
