"""The archiver: a stream of offset ranges, each batch of it committed to both tables of the lake.

Spark's stream plans the end offsets and keeps them in its checkpoint; tasks read the ranges and
write the files. Start offsets do not come from the checkpoint but from the tables themselves (see
lake/tables.py): a batch of the stream only gives the ends, and each partition resumes where its
tables end. So neither a driver that dies at any moment, nor a batch that runs twice, nor a lost
checkpoint loses a record or archives one twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from moldau.ops.client import ClientError, TopicPartition
from moldau.ops.pipeline.archive.commit_offsets import commit_archived_offsets
from moldau.ops.pipeline.archive.task import ArchiveRange, ArchiveTask, TaskResult, run_task
from moldau.ops.pipeline.errors import PipelineError, from_spark, offsets_trimmed
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, TABLES
from moldau.ops.pipeline.lake.tables import Lake, application_of, held_offsets, hold_lock
from moldau.ops.pipeline.progress import Meter
from moldau.ops.pipeline.source.fetch import OffsetRange
from moldau.ops.pipeline.source.offsets import bundles, split
from moldau.ops.pipeline.source.options import RANGES, Options, read_options
from moldau.ops.pipeline.source.planning import Planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("moldau.pipeline")

# Smaller pieces are not worth a task of their own.
MIN_PIECE_OFFSETS = 20_000
POLL_S = 1
_RESUMES_AT = "where the lake ends"


class ArchiveSettings(NamedTuple):
    """What to archive, and how; topics and patterns as the source takes them."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    max_records: int = 1_000_000
    interval_s: float = 10.0
    allow_data_loss: bool = False
    client_properties: Mapping[str, str] = {}  # security.protocol, sasl.*, ssl.*

    def options(self) -> dict[str, str]:
        """Options for the source. `records` holds committed transactions only."""
        chosen = (
            {"subscribePattern": self.pattern}
            if self.pattern is not None
            else {"subscribe": ",".join(self.topics)}
        )
        return {
            **chosen,
            **{f"kafka.{name}": value for name, value in self.client_properties.items()},
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "moldau-archive",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.max_records),
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "moldau.rows": RANGES,
        }


def archiver_lock(lake: Lake) -> AbstractContextManager[None]:
    """One archiver per lake: their checkpoints and commits would get in each other's way."""
    return hold_lock(
        lake.state_path / "lock",
        f"archiving into {lake.path}",
        "a lake has one archiver: stop that one first, or use another lake for this one",
    )


class Archiver:
    def __init__(
        self, spark: SparkSession, lake: Lake, settings: ArchiveSettings, meter: Meter | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._options: Options = read_options(settings.options())
        self._planner = Planner(self._options)
        self._meter = meter or Meter("archive")
        self._fault: ClientError | None = None
        self._stop_asked = threading.Event()
        self._unreadable: set[tuple[TopicPartition, int]] = set()

    def run(self, *, continuous: bool) -> None:
        """Archive what exists now, or until `stop` is called. Raises PipelineError."""
        reader = self._spark.readStream.format("moldau").options(**self._settings.options())
        writer = (
            reader.load()
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self._lake.checkpoint))
        )
        if continuous:
            writer = writer.trigger(processingTime=f"{self._settings.interval_s} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        try:
            query = writer.start()
            while not query.awaitTermination(POLL_S):
                if self._stop_asked.is_set():
                    query.stop()
                    break
        except PySparkException as error:
            raise self._fault or from_spark(error, _RESUMES_AT) from error
        except (Py4JError, OSError) as error:
            raise PipelineError(
                "Spark's Java process has ended; was it killed, or was there too little memory? "
                f"Run it again, it resumes {_RESUMES_AT}"
            ) from error
        finally:
            self._planner.close()

    def stop(self) -> None:
        """End soon. Safe in a signal handler, where Java must not be called."""
        self._stop_asked.set()

    # --- one batch of the stream ---

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            ranges = [
                OffsetRange(TopicPartition(row[0], row[1]), row[2], row[3])
                for row in frame.collect()
            ]
            self._archive(ranges, batch_id)
        except ClientError as fault:
            self._fault = fault
            raise

    def _archive(self, ranges: list[OffsetRange], batch_id: int) -> None:
        ids = self._planner.topic_ids({one.topic_partition.topic for one in ranges})
        applications = {
            one.topic_partition: application_of(
                ids[one.topic_partition.topic], one.topic_partition.partition
            )
            for one in ranges
            if one.topic_partition.topic in ids  # not deleted since
        }
        ends = {
            one.topic_partition: one.end for one in ranges if one.topic_partition in applications
        }
        # Commits are made on the tables as they were when these offsets were read.
        opened = {table: self._lake.open(table) for table in TABLES}
        held = {table: held_offsets(opened[table], applications) for table in TABLES}
        work = self._work(ends, held)
        results = self._run(work)
        self._note_unreadable(results)
        for table in TABLES:
            # After a crash between the two commits one table is ahead of the other.
            versions = {
                applications[partition]: end
                for partition, end in ends.items()
                if end > held[table].get(partition, -1)
            }
            files = [file for done in results for file in done.files if file.table == table]
            if versions or files:
                metadata = {"moldau.batch": str(batch_id)}
                self._lake.commit(table, opened[table], files, versions, metadata)
        reached = {
            partition: max(end, min(held[table].get(partition, 0) for table in TABLES))
            for partition, end in ends.items()
        }
        commit_archived_offsets(self._options.fetch, reached, ids, str(self._lake.path))
        latest = self._planner.latest(self._planner.partitions())
        native = self._planner.native({partition.topic for partition in latest})
        lag = sum(
            max(end - ends.get(partition, end), 0)
            for partition, end in latest.items()
            if partition.topic not in native
        )
        self._meter.advance(
            sum(done.records for done in results), sum(done.bytes for done in results), lag
        )

    def _work(
        self, ends: Mapping[TopicPartition, int], held: Mapping[str, Mapping[TopicPartition, int]]
    ) -> list[ArchiveRange]:
        """Ranges that begin where each table ends, or at the start of the log."""
        earliest = self._planner.earliest(list(ends))
        native = self._planner.native({partition.topic for partition in ends})
        made = []
        for partition, end in ends.items():
            if partition not in earliest:
                continue  # deleted since
            first = earliest[partition]
            begins = {}
            for table in TABLES:
                begin = held[table].get(partition, first)
                if begin < first and begin < end:
                    self._lost(partition, begin, first)
                begins[table] = max(begin, first)
            if partition.topic in native:
                begins[BATCHES] = end  # it has no batches
            start = min(begins.values())
            if start < end:
                made.append(
                    ArchiveRange(
                        OffsetRange(partition, start, end), begins[BATCHES], begins[RECORDS]
                    )
                )
        return made

    def _note_unreadable(self, results: list[TaskResult]) -> None:
        """Log each once: two tasks may read the same batch, and a batch of the stream run again."""
        for partition, offset, reason in (each for done in results for each in done.unreadable):
            if (partition, offset) not in self._unreadable:
                self._unreadable.add((partition, offset))
                logger.warning(
                    "partition %s: the batch at offset %d cannot be read: %s; it is archived as it "
                    "is, marked as unreadable, without records",
                    *(partition, offset, reason),
                )
        self._meter.unreadable = len(self._unreadable)

    def _lost(self, partition: TopicPartition, wanted: int, earliest: int) -> None:
        error = offsets_trimmed(partition, wanted, earliest)
        if not self._settings.allow_data_loss:
            raise error
        logger.warning("%s", error)

    def _run(self, work: list[ArchiveRange]) -> list[TaskResult]:
        if not work:
            return []
        context = self._spark.sparkContext
        cores = context.defaultParallelism
        total = sum(one.wanted.size for one in work)
        by_partition = {one.wanted.topic_partition: one for one in work}
        pieces = split([one.wanted for one in work], min(cores, max(total // MIN_PIECE_OFFSETS, 1)))
        settings = self._options.fetch
        tasks = [
            ArchiveTask(
                str(self._lake.path),
                settings,
                tuple(
                    by_partition[piece.topic_partition]._replace(wanted=piece)
                    for piece in bundle.ranges
                ),
            )
            for bundle in bundles(pieces, cores)
        ]
        results: list[Any] = context.parallelize(tasks, len(tasks)).map(run_task).collect()
        return results
