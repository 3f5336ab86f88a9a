"""Records of one partition in a lake in the order of their offsets, for executors.

Files overlap until they are compacted. So offsets are read in windows: each from every file whose
statistics allow for some of it, then sorted. A window is as many offsets as make about 32 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.schemas import RECORDS, file_schema
from moldau.ops.pipeline.lake.tables import Lake

WINDOW_BYTES = 32 << 20
_FIRST_STEP, _MIN_STEP, _MAX_STEP = 20_000, 500, 2_000_000
_INSTANT = pa.timestamp("us", tz="UTC")


class RecordsFile(NamedTuple):
    """A file of `records`: the lowest and highest partition and offset in it."""

    path: str
    partitions: tuple[int, int]
    offsets: tuple[int, int]


class RecordRange(NamedTuple):
    """Records of a partition: offsets `first` to `last`, timestamps from `from_time_ms` on."""

    topic_partition: TopicPartition
    files: tuple[RecordsFile, ...]
    first: int
    last: int
    from_time_ms: int | None = None


def files_of(lake: Lake, topic: str) -> list[RecordsFile]:
    opened = lake.open(RECORDS)
    actions = pa.table(opened.get_add_actions(flatten=True))
    if not actions.num_rows:
        return []
    names = ("min.partition", "max.partition", "min.offset", "max.offset")
    return [
        RecordsFile(str(lake.table_path(RECORDS) / path), (low, high), (first, last))
        for path, its_topic, low, high, first, last in zip(
            *(actions.column(name).to_pylist() for name in ("path", "partition.topic", *names)),
            strict=True,
        )
        if its_topic == topic
    ]


def of_partition(files: Sequence[RecordsFile], partition: int) -> tuple[RecordsFile, ...]:
    return tuple(one for one in files if one.partitions[0] <= partition <= one.partitions[1])


def read_in_order(rows: RecordRange, window_bytes: int = WINDOW_BYTES) -> Iterator[Any]:
    """Arrow tables without the columns topic and date. Raises PipelineError."""
    at, step = rows.first, _FIRST_STEP
    while at <= rows.last:
        end = min(at + step, rows.last + 1)
        files = [one for one in rows.files if one.offsets[0] < end and one.offsets[1] >= at]
        if not files:
            later = [one.offsets[0] for one in rows.files if one.offsets[0] >= end]
            at = min(later, default=rows.last + 1)
            continue
        found = _window(rows, [one.path for one in files], at, end)
        at = end
        size = max(found.nbytes, 1)
        step = min(max(int(step * min(window_bytes / size, 4)), _MIN_STEP), _MAX_STEP)
        if found.num_rows:
            yield found.sort_by("offset")


def _window(rows: RecordRange, paths: list[str], at: int, end: int) -> Any:
    offset = pc.field("offset")
    wanted = (
        (pc.field("partition") == rows.topic_partition.partition) & (offset >= at) & (offset < end)
    )
    if rows.from_time_ms is not None:
        since = pa.scalar(rows.from_time_ms * 1000, pa.int64()).cast(_INSTANT)
        wanted &= pc.field("timestamp") >= since
    try:
        dataset = ds.dataset(paths, schema=file_schema(RECORDS), format="parquet")
        return dataset.to_table(filter=wanted)
    except FileNotFoundError as error:
        raise PipelineError(
            f"partition {rows.topic_partition}: a file of the lake no longer exists: "
            f"{Path(str(error)).name}; was the lake compacted with a short --retention-hours? Run "
            "it again, it resumes where it stopped"
        ) from None
