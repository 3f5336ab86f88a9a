"""The Python Data Source `moldau`: topics as DataFrames, in batch and as a stream.

    spark.dataSource.register(MoldauSource)
    spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092")
        .option("subscribe", "orders").load()

Options and columns are those of Spark's own Kafka source. The driver plans ranges of offsets;
executors read them and hand Arrow record batches to Spark. With `moldau.rows=ranges` the rows are
the planned ranges themselves: the archiver reads them in tasks of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from moldau.broker.process import prepare_process
from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.decode import Columns, decode
from moldau.ops.pipeline.source.fetch import OffsetRange, RangeReader
from moldau.ops.pipeline.source.fields import HEADERS_TYPE
from moldau.ops.pipeline.source.offsets import (
    LATEST,
    Nested,
    Offsets,
    from_nested,
    rate_limited,
    split,
    to_nested,
)
from moldau.ops.pipeline.source.options import RANGES, Options, read_options
from moldau.ops.pipeline.source.planning import Planner
from moldau.ops.pipeline.source.unreadable import Unreadable

FORMAT = "moldau"

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_RANGE_COLUMNS = "topic string, partition int, start bigint, end bigint"

_ARROW_RANGES = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("end", pa.int64())]
)
_ARROW = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]


class MoldauSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read = read_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        if self._read.rows == RANGES:
            return _RANGE_COLUMNS
        return _COLUMNS + (_HEADERS if self._read.headers else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._read)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._read)


class TaskRanges(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def _plan(options: Options, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
    if options.rows == RANGES:
        return [TaskRanges(ranges)] if ranges else []
    pieces = split(ranges, options.min_partitions, options.max_records)
    return [TaskRanges([one]) for one in pieces]


class BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        starting = options.batch_starting
        values = [starting.all] if starting.each is None else list(starting.each.values())
        if not starting.by_time and LATEST in values:
            raise PipelineError(
                "startingOffsets: a batch read cannot begin at the latest offset (-1)"
            )

    def partitions(self) -> list[InputPartition]:
        options = self._options
        planner = Planner(options)
        try:
            partitions = planner.existing()
            starts = planner.resolve(options.batch_starting, partitions, is_start=True)
            ends = planner.resolve(options.ending, partitions, is_start=False)
            # Spark would make one partition of an empty list.
            return _plan(options, planner.ranges(starts, ends)) or [TaskRanges([])]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._planner = Planner(options)
        self._final: Offsets | None = None  # the ends for Trigger.AvailableNow
        self._last_trigger = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Keep only what executors need, which call nothing but `read`."""
        return {"_options": self._options}

    def initialOffset(self) -> Nested:
        partitions = self._planner.existing()
        starting = self._options.stream_starting
        return to_nested(self._planner.resolve(starting, partitions, is_start=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = self._planner.latest(self._planner.partitions())

    def reportLatestOffset(self) -> Nested:
        return to_nested(self._planner.latest(self._planner.partitions()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Nested:
        starts = from_nested(start)
        ends = self._available(starts)
        begins = self._begins(starts, ends)
        lag = sum(max(end - begins.get(partition, end), 0) for partition, end in ends.items())
        if self._is_too_little(lag):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = {**ends, **rate_limited(begins, self._countable(ends), limit.max_rows)}
        if lag:
            self._last_trigger = time.monotonic()
        return to_nested(ends)

    def _available(self, starts: Offsets) -> Offsets:
        if self._final is not None:
            return self._final
        partitions = self._planner.partitions()
        if self._options.rows != RANGES:
            self._planner.check_lost(starts, partitions)
        found = self._planner.latest(partitions)
        # A partition that is being created is read next time.
        return {partition: found[partition] for partition in partitions if partition in found}

    def _countable(self, ends: Offsets) -> Offsets:
        """Partitions whose offsets count records.

        Offsets of native topics are times: a limit of a million would be a second.
        """
        if self._options.rows != RANGES:
            return ends
        native = self._planner.native({partition.topic for partition in ends})
        return {partition: end for partition, end in ends.items() if partition.topic not in native}

    def _begins(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Add new partitions, which begin at their earliest offset."""
        new = ends.keys() - starts.keys()
        return {**self._planner.earliest(new), **starts} if new else starts

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        starts, ends = from_nested(start), from_nested(end)
        if self._options.rows != RANGES:
            return _plan(self._options, self._planner.ranges(starts, ends))
        # The archiver knows what was read: a topic that was created again is read from its start.
        starts = {
            partition: at for partition, at in starts.items() if at <= ends.get(partition, -1)
        }
        begins = self._begins(starts, ends)
        return _plan(
            self._options,
            [
                OffsetRange(one, begins.get(one, 0), end)
                for one, end in sorted(ends.items())
                if begins.get(one, 0) < end
            ],
        )

    def _is_too_little(self, lag: int) -> bool:
        wanted = self._options.min_offsets
        if wanted is None or lag >= wanted or self._final is not None:
            return False
        return time.monotonic() - self._last_trigger < self._options.max_delay_s

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(self._options, partition)

    def stop(self) -> None:
        self._planner.close()


def read_ranges(options: Options, partition: InputPartition) -> Iterator[Any]:
    """The rows of one task, as Arrow record batches."""
    assert isinstance(partition, TaskRanges)
    if options.rows == RANGES:
        if partition.ranges:
            yield _range_rows(partition.ranges)
        return
    prepare_process()
    yield from _record_rows(options, partition.ranges)


def _range_rows(ranges: Sequence[OffsetRange]) -> Any:
    rows = [(*one.topic_partition, one.start, one.end) for one in ranges]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, _ARROW_RANGES, strict=True)
        ],
        schema=_ARROW_RANGES,
    )


def _record_rows(options: Options, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
    settings, headers = options.fetch, options.headers
    schema = pa.schema([*_ARROW, ("headers", HEADERS_TYPE)] if headers else _ARROW)
    reader = RangeReader(settings)
    try:
        for one in ranges:
            unreadable = Unreadable(one.topic_partition, options.on_unreadable)
            for batches in reader.read(one):
                for columns in decode(
                    batches,
                    headers=headers,
                    check_crcs=settings.check_crcs,
                    on_unreadable=unreadable,
                ):
                    if len(columns):
                        yield _record_batch(schema, one.topic_partition, columns)
            unreadable.log_total()
    finally:
        reader.close()


def _record_batch(schema: Any, partition: TopicPartition, columns: Columns) -> Any:
    count = len(columns)
    arrays = [
        columns.key,
        columns.value,
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.array(np.full(count, partition.partition, np.int32)),
        pa.array(columns.offset),
        timestamps(columns),
        pa.array(columns.timestamp_type),
    ]
    if columns.headers is not None:
        arrays.append(columns.headers)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def timestamps(columns: Columns) -> Any:
    """Timestamps in microseconds, as Spark has them."""
    return pa.array(columns.timestamp_ms * 1000).view(pa.timestamp("us", tz="UTC"))
