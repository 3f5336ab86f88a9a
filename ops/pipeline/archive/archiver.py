"""The archiver: a stream of offset ranges, each batch of it committed to both tables of the lake.

Spark's stream plans how far to go and remembers it in its checkpoint; its tasks read the ranges and
write the files. What is archived already is not taken from the checkpoint, though, but from the
tables themselves (see lake.py): each batch of the stream only says how far to go, and where a
partition goes on is where its tables end. So a driver that dies at any moment, a batch that runs
twice and a checkpoint that is lost neither lose a record nor archive one twice.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ops.client import ClientError, TopicPartition
from ops.pipeline.archive.commit_offsets import publish
from ops.pipeline.archive.task import Done, Task, Work, run_task
from ops.pipeline.errors import PipelineError, offsets_trimmed
from ops.pipeline.lake.tables import BATCHES, RECORDS, TABLES, Lake, application_of
from ops.pipeline.progress import Meter
from ops.pipeline.source.fetch import Range
from ops.pipeline.source.offsets import bundles, split
from ops.pipeline.source.options import RANGES, Options, read_options
from ops.pipeline.source.planning import Planner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("moldau.pipeline")

# Smaller pieces than this are not worth a task of their own.
LEAST_PIECE = 20_000
LOOK_EVERY_S = 1
_OUR_ERROR = re.compile(r"ops\.(?:pipeline\.errors|client)\.\w+: (.+)")


class Settings(NamedTuple):
    """What is archived and how; topics and patterns as the source takes them."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    max_records: int = 1_000_000
    interval_s: float = 10.0
    allow_data_loss: bool = False

    def options(self) -> dict[str, str]:
        """For the source. Only what transactions have committed goes into the lake."""
        chosen = (
            {"subscribePattern": self.pattern}
            if self.pattern is not None
            else {"subscribe": ",".join(self.topics)}
        )
        return {
            **chosen,
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "moldau-archive",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.max_records),
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "moldau.rows": RANGES,
        }


class Archiver:
    def __init__(
        self, spark: SparkSession, lake: Lake, settings: Settings, meter: Meter | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._options: Options = read_options(settings.options())
        self._planner = Planner(self._options)
        self._meter = meter or Meter("archive")
        self._fault: ClientError | None = None
        self._stop_asked = threading.Event()

    def run(self, *, continuous: bool) -> None:
        """Archive what is there now, or until `stop`. Raises PipelineError."""
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
            while not query.awaitTermination(LOOK_EVERY_S):
                if self._stop_asked.is_set():
                    query.stop()
                    break
        except PySparkException as error:
            raise self._explained(error) from error
        except (Py4JError, OSError) as error:
            raise PipelineError(
                "Spark's Java process is gone; was it killed, or was there too little memory? "
                "Run it again, it goes on where the lake ends"
            ) from error
        finally:
            self._planner.close()

    def stop(self) -> None:
        """End soon: from a signal handler too, where Java must not be called."""
        self._stop_asked.set()

    def _explained(self, error: Exception) -> ClientError:
        """Our own errors come back inside Spark's, wherever they were raised."""
        if self._fault is not None:
            return self._fault
        found = _OUR_ERROR.search(str(error))
        if found is not None:
            return PipelineError(found[1].strip())
        first_line = next(iter(str(error).strip().splitlines()), "")
        return PipelineError(
            f"Spark gave up: {first_line}; run it again, it goes on where the lake ends"
        )

    # --- one batch of the stream ---

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            ranges = [
                Range(TopicPartition(row[0], row[1]), row[2], row[3]) for row in frame.collect()
            ]
            self._archive(ranges, batch_id)
        except ClientError as fault:
            self._fault = fault
            raise

    def _archive(self, ranges: list[Range], batch_id: int) -> None:
        ids = self._planner.topic_ids({one.place.topic for one in ranges})
        applications = {
            one.place: application_of(ids[one.place.topic], one.place.partition)
            for one in ranges
            if one.place.topic in ids  # not deleted meanwhile
        }
        ends = {one.place: one.end for one in ranges if one.place in applications}
        held = {table: self._lake.committed(table, applications) for table in TABLES}
        work = self._work(ends, held)
        results = self._run(work)
        for table in TABLES:
            # What one table holds already another may still need, after a crash between them.
            versions = {
                applications[place]: end
                for place, end in ends.items()
                if end > held[table].get(place, -1)
            }
            files = [file for done in results for file in done.files if file.table == table]
            if versions or files:
                self._lake.commit(table, files, versions, {"moldau.batch": str(batch_id)})
        reached = {
            place: max(end, min(held[table].get(place, 0) for table in TABLES))
            for place, end in ends.items()
        }
        publish(self._options.fetch, reached, ids, str(self._lake.path))
        latest = self._planner.latest(self._planner.partitions())
        native = self._planner.native({place.topic for place in latest})
        lag = sum(
            max(end - ends.get(place, end), 0)
            for place, end in latest.items()
            if place.topic not in native
        )
        self._meter.advance(
            sum(done.records for done in results), sum(done.bytes for done in results), lag
        )

    def _work(
        self, ends: Mapping[TopicPartition, int], held: Mapping[str, Mapping[TopicPartition, int]]
    ) -> list[Work]:
        """From where each table ends, or from the first record there is."""
        earliest = self._planner.earliest(list(ends))
        native = self._planner.native({place.topic for place in ends})
        made = []
        for place, end in ends.items():
            if place not in earliest:
                continue  # deleted meanwhile
            first = earliest[place]
            begins = {}
            for table in TABLES:
                begin = held[table].get(place, first)
                if begin < first and begin < end:
                    self._lost(place, begin, first)
                begins[table] = max(begin, first)
            if place.topic in native:
                begins[BATCHES] = end  # it has records only
            start = min(begins.values())
            if start < end:
                made.append(Work(Range(place, start, end), begins[BATCHES], begins[RECORDS]))
        return made

    def _lost(self, place: TopicPartition, wanted: int, earliest: int) -> None:
        error = offsets_trimmed(place, wanted, earliest)
        if not self._settings.allow_data_loss:
            raise error
        log.warning("%s", error)

    def _run(self, work: list[Work]) -> list[Done]:
        if not work:
            return []
        context = self._spark.sparkContext
        cores = context.defaultParallelism
        total = sum(one.wanted.size for one in work)
        by_place = {one.wanted.place: one for one in work}
        pieces = split([one.wanted for one in work], min(cores, max(total // LEAST_PIECE, 1)))
        settings = self._options.fetch
        tasks = [
            Task(
                str(self._lake.path),
                settings,
                tuple(by_place[piece.place]._replace(wanted=piece) for piece in bundle.ranges),
            )
            for bundle in bundles(pieces, cores)
        ]
        results: list[Any] = context.parallelize(tasks, len(tasks)).map(run_task).collect()
        return results
