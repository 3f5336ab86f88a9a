"""Replay: sends records of a lake to a topic, with their keys, headers and timestamps.

One Spark task per partition reads its records in order and sends them with the idempotent producer
of producer.py. No record is lost or sent twice, whatever is killed and when:

- the records to send, and a producer id for each partition of them, are on the disk before the
  first record is sent (job.py);
- so each record has the same sequence number in every attempt, and the broker appends a sequence
  once and in order;
- a replay that resumes reads from the target how far it came, and skips that.

A request of a killed process that reaches the broker late carries a sequence as well: either the
broker already has that record, or it is appended now and the resumed replay's own is the duplicate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from moldau.broker.wire import codecs
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.ops.client import EARLIEST, LATEST, Cluster, TopicPartition, refusal
from moldau.ops.pipeline.errors import PipelineError, from_spark
from moldau.ops.pipeline.lake.ordered_rows import RecordRange, files_of, of_partition
from moldau.ops.pipeline.lake.query import table_frame
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.lake.tables import Lake, hold_lock
from moldau.ops.pipeline.progress import Meter
from moldau.ops.pipeline.replay.job import (
    KEEP,
    Job,
    Positions,
    SourcePartition,
    check_kept,
    check_trimmed,
    find_positions,
    finish_job,
    job_name,
    job_path,
    load_job,
    save_job,
    target_offsets,
)
from moldau.ops.pipeline.replay.target import TargetTopic, find_target
from moldau.ops.pipeline.replay.task import SendResult, SendTask, send_partition
from moldau.ops.pipeline.replay.watch import ProgressWatch
from moldau.ops.pipeline.source.fetch import FetchSettings, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("moldau.pipeline")

CODECS = {
    "none": codecs.NONE,
    "gzip": codecs.GZIP,
    "snappy": codecs.SNAPPY,
    "lz4": codecs.LZ4,
    "zstd": codecs.ZSTD,
}


class ReplayRequest(NamedTuple):
    """What to replay, and where to."""

    topic: str
    target: str
    mode: str = KEEP
    from_offset: int | None = None
    from_time_ms: int | None = None
    codec: str = "none"
    again: bool = False


class ReplayOutcome(NamedTuple):
    rows: int
    sent: int
    done_before: str | None = None
    unreadable: int = 0


class LakePartition(NamedTuple):
    """The records of a partition in the lake."""

    first: int
    last: int
    rows: int
    oldest_ms: int
    bytes: int


class Replayer:
    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: FetchSettings,
        request: ReplayRequest,
        meter: Meter | None = None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._request = request
        self._meter = meter or Meter("replay")
        self._bytes = 0

    def run(self) -> ReplayOutcome:
        """Raises PipelineError."""
        request = self._request
        with connect(self._settings) as cluster:
            cluster_id = cluster.metadata().cluster_id or ""
            name = job_name(
                request.topic, request.target, cluster_id, request.mode, request.from_offset,
                request.from_time_ms,
            )  # fmt: skip
            path = job_path(self._lake, name)
            with hold_lock(path.with_suffix(".lock"), f"this replay of {request.topic}"):
                job = None if request.again else load_job(path)
                if job is not None and job.done_at is not None:
                    return ReplayOutcome(job.rows, 0, job.done_at)
                target = find_target(cluster, request.target)
                if job is None:
                    job = self._begin(cluster, cluster_id, target)
                    save_job(path, job)
                    positions: Positions = {partition: {} for partition in job.sources}
                else:
                    positions = self._resume(cluster, job, target)
                unreadable = self._count_unreadable(job)
                sent = self._send(job, positions, target.batch_bytes)
                self._check_kept(cluster, job)
                finish_job(path, job)
                return ReplayOutcome(job.rows, sent, unreadable=unreadable)

    # --- planning ---

    def _begin(self, cluster: Cluster, cluster_id: str, target: TargetTopic) -> Job:
        request = self._request
        self._meter.say(f"looking for records of {request.topic}")
        found = self._found(self._rows(request.from_offset, request.from_time_ms))
        if not found:
            raise PipelineError(
                f"the lake {self._lake.path} has no such records of topic {request.topic}; what it "
                'has: moldau pipeline sql --lake … "select topic, min(offset), max(offset), '
                'min(timestamp), max(timestamp) from records group by topic"'
            )
        targets = target.partitions
        if request.mode == KEEP and max(found) >= targets:
            raise PipelineError(
                f"the lake has partition {max(found)} of {request.topic}, and {request.target} has "
                f"{targets} partitions; give it more (moldau topics alter {request.target} "
                f"--partitions {max(found) + 1}), or send by key: --partitions hash"
            )
        self._warn_of_retention(target, found)
        sources = {}
        for partition, one in found.items():
            producer_id, epoch = _new_producer_id(cluster)
            sources[partition] = SourcePartition(producer_id, epoch, one.first, one.last, one.rows)
        return Job(
            request.topic,
            request.target,
            target.topic_id,
            cluster_id,
            request.mode,
            request.from_offset,
            request.from_time_ms,
            targets,
            target_offsets(cluster, request.target, range(targets), LATEST),
            sources,
            epochs=target.epochs,
        )

    def _resume(self, cluster: Cluster, job: Job, target: TargetTopic) -> Positions:
        if target.topic_id != job.target_id:
            raise PipelineError(
                f"topic {job.target} was deleted and created again since this replay began; "
                "start over with --again"
            )
        found = self._found(self._rows(job.from_offset, job.from_time_ms, job))
        for partition, source in job.sources.items():
            rows = found[partition].rows if partition in found else 0
            if rows != source.rows:
                raise PipelineError(
                    f"partition {TopicPartition(job.topic, partition)}: the lake had "
                    f"{source.rows:,} records of it when this replay began and has {rows:,} of "
                    "them now; if that is right, start over with --again"
                )
        self._meter.say(f"reading from {job.target} what was sent before")
        ends = target_offsets(cluster, job.target, job.begins, LATEST)
        starts = target_offsets(cluster, job.target, job.begins, EARLIEST)
        positions = find_positions(self._settings, job, ends)
        check_trimmed(job, positions, starts)
        return positions

    def _rows(
        self, from_offset: int | None, from_time_ms: int | None, job: Job | None = None
    ) -> DataFrame:
        from pyspark.sql import functions as f

        frame = table_frame(self._spark, self._lake, RECORDS)
        frame = frame.where(f.col("topic") == self._request.topic)
        if from_offset is not None:
            frame = frame.where(f.col("offset") >= from_offset)
        if from_time_ms is not None:
            frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(from_time_ms)))
        if job is not None:
            # Records that were archived since it began are not part of it.
            inside = f.lit(False)
            for partition, source in job.sources.items():
                inside = inside | (
                    (f.col("partition") == partition) & (f.col("offset") <= source.last)
                )
            frame = frame.where(inside)
        return frame

    def _count_unreadable(self, job: Job) -> int:
        """Batches the archiver could not read: they have no records to send."""
        from pyspark.sql import functions as f

        frame = table_frame(self._spark, self._lake, BATCHES)
        frame = frame.where((f.col("topic") == job.topic) & f.col("unreadable").isNotNull())
        if job.from_offset is not None:
            frame = frame.where(f.col("last_offset") >= job.from_offset)
        if job.from_time_ms is not None:
            since = f.timestamp_millis(f.lit(job.from_time_ms))
            frame = frame.where(f.col("max_timestamp") >= since)
        count = frame.count()
        if count:
            logger.warning(
                "topic %s: %d batches of the lake cannot be read and are left out; to see them: "
                'moldau pipeline sql --lake … "select partition, base_offset, last_offset, '
                "unreadable from batches where topic = '%s' and unreadable is not null\"",
                *(job.topic, count, job.topic),
            )
        return count

    def _found(self, frame: DataFrame) -> dict[int, LakePartition]:
        from pyspark.sql import functions as f

        summary = frame.groupBy("partition").agg(
            f.min("offset"),
            f.max("offset"),
            f.count("offset"),
            f.count_distinct("offset"),
            f.unix_millis(f.min("timestamp")),
            f.sum(f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))),
        )
        found = {}
        for partition, first, last, rows, distinct, oldest_ms, size in summary.collect():
            if rows != distinct:
                raise PipelineError(
                    f"partition {TopicPartition(self._request.topic, partition)}: the lake has "
                    f"{rows:,} records under {distinct:,} offsets; the topic was deleted and "
                    "created again. Choose the records of one of them with --from-time"
                )
            found[partition] = LakePartition(first, last, rows, oldest_ms, size)
        self._bytes = sum(one.bytes for one in found.values())
        return dict(sorted(found.items()))

    def _warn_of_retention(self, target: TargetTopic, found: Mapping[int, LakePartition]) -> None:
        oldest_ms = min(one.oldest_ms for one in found.values())
        if target.retention_ms >= 0 and oldest_ms < time.time() * 1000 - target.retention_ms:
            self._meter.say(
                f"records older than retention.ms={target.retention_ms} of {self._request.target} "
                "will be deleted at the next retention check; to keep them: moldau topics "
                f"alter {self._request.target} --config retention.ms=-1"
            )

    def _check_kept(self, cluster: Cluster, job: Job) -> None:
        epochs = find_target(cluster, job.target).epochs
        ends = target_offsets(cluster, job.target, job.begins, LATEST)
        check_kept(self._settings, job, ends, epochs)

    # --- sending ---

    def _send(self, job: Job, positions: Positions, batch_bytes: int) -> int:
        from pyspark.errors import PySparkException

        files = files_of(self._lake, job.topic)
        orders = [
            SendTask(
                self._settings,
                job,
                RecordRange(
                    TopicPartition(job.topic, partition),
                    of_partition(files, partition),
                    source.first,
                    source.last,
                    job.from_time_ms,
                ),
                positions[partition],
                CODECS[self._request.codec],
                batch_bytes,
            )
            for partition, source in job.sources.items()
        ]
        tasks = self._spark.sparkContext.parallelize(orders, len(orders))
        try:
            with ProgressWatch(self._settings, job, self._meter, self._bytes / job.rows) as watch:
                results: list[SendResult] = tasks.map(send_partition).collect()
        except PySparkException as error:
            raise from_spark(error) from error
        passed = {one.partition: one.sent + one.skipped for one in results}
        wanted = {partition: source.rows for partition, source in job.sources.items()}
        if passed != wanted:
            raise PipelineError(
                f"{wanted} records by partition were to be sent and {passed} were read; did "
                "the lake change? Run it again, it resumes where it stopped"
            )
        watch.reached(job.rows)
        return sum(one.sent for one in results)


def _new_producer_id(cluster: Cluster) -> tuple[int, int]:
    answer = cluster.call(InitProducerIdRequest(None, 60_000))
    if answer.error_code:
        raise refusal("a producer id", answer.error_code)
    return answer.producer_id, answer.producer_epoch
