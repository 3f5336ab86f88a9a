"""Replay: records of a lake into a topic, keys, headers and timestamps as they were.

A Spark task for each partition reads its records in order and sends them with the idempotent
producer of sending.py. Nothing is lost and nothing is there twice, whatever is killed when:

- what is to be sent, and the producer id for each partition of it, is on the disk before the first
  record is sent (replay_job.py);
- so each record has its sequence number, the same at every try, and the broker appends a sequence
  once and in order;
- who comes back reads from the target how far it came, and leaves that out.

A request of a killed process that reaches the broker later carries sequences as well: the broker
has them already, or it is ours that it has already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from broker.wire import codecs
from broker.wire.messages.init_producer_id import InitProducerIdRequest
from ops.admin.topic_state import topic_configs
from ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from ops.pipeline.errors import PipelineError, from_spark
from ops.pipeline.lake.lock import hold_lock
from ops.pipeline.lake.ordered_rows import RecordRange, files_of, of_partition
from ops.pipeline.lake.query import table_frame
from ops.pipeline.lake.schemas import RECORDS
from ops.pipeline.lake.tables import Lake
from ops.pipeline.progress import Meter
from ops.pipeline.replay.job import (
    KEEP,
    Job,
    Positions,
    SourcePartition,
    check_trimmed,
    find_positions,
    finish_job,
    job_name,
    job_path,
    load_job,
    save_job,
)
from ops.pipeline.replay.producer import BATCH_BYTES
from ops.pipeline.replay.task import SendResult, SendTask, send_partition, target_offsets
from ops.pipeline.source.fetch import FetchSettings, connect

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
_LOOK_EVERY_S = 1.0


class ReplayRequest(NamedTuple):
    """What is replayed where."""

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


class Replayer:
    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        settings: FetchSettings,
        wanted: ReplayRequest,
        meter: Meter | None = None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._wanted = wanted
        self._meter = meter or Meter("replay")
        self._bytes = 0

    def run(self) -> ReplayOutcome:
        """Raises PipelineError."""
        wanted = self._wanted
        with connect(self._settings) as cluster:
            cluster_id = cluster.metadata().cluster_id or ""
            name = job_name(
                wanted.topic, wanted.target, cluster_id, wanted.mode, wanted.from_offset,
                wanted.from_time_ms,
            )  # fmt: skip
            path = job_path(self._lake, name)
            with hold_lock(path.with_suffix(".lock"), f"this replay of {wanted.topic}"):
                job = None if wanted.again else load_job(path)
                if job is not None and job.done_at is not None:
                    return ReplayOutcome(job.rows, 0, job.done_at)
                target = self._target(cluster)
                if job is None:
                    job = self._begin(cluster, cluster_id, target)
                    save_job(path, job)
                    positions: Positions = {partition: {} for partition in job.sources}
                else:
                    positions = self._resume(cluster, job, target)
                sent = self._send(job, positions, target.batch_bytes)
                finish_job(path, job)
                return ReplayOutcome(job.rows, sent)

    # --- what is to be done ---

    def _target(self, cluster: Cluster) -> Target:
        name = self._wanted.target
        found = cluster.topics([name]).get(name)
        if found is None:
            raise PipelineError(
                f"there is no topic {name}; make it first, with as many partitions as it is to "
                f"have: moldau topics create {name} --partitions N"
            )
        configs = {one["name"]: one["value"] for one in topic_configs(cluster, name)}
        if configs.get("moldau.storage") == "native":
            raise PipelineError(
                f"topic {name} has moldau.storage=native: its entries do not keep who produced "
                "them, so that none is there twice could not be told; replay to an ordinary topic"
            )
        if configs.get("message.timestamp.type") == "LogAppendTime":
            raise PipelineError(
                f"topic {name} would not keep timestamps; change it first: moldau topics alter "
                f"{name} --config message.timestamp.type=CreateTime"
            )
        retention_ms = int(configs.get("retention.ms") or -1)
        largest = int(configs.get("max.message.bytes") or BATCH_BYTES)
        return Target(
            found.topic_id.hex(),
            len(found.partitions),
            retention_ms if "delete" in (configs.get("cleanup.policy") or "delete") else -1,
            max(min(BATCH_BYTES, largest // 2), 1),
        )

    def _begin(self, cluster: Cluster, cluster_id: str, target: Target) -> Job:
        wanted = self._wanted
        self._meter.say(f"looking for the records of {wanted.topic}")
        found = self._found(self._rows(wanted.from_offset, wanted.from_time_ms))
        if not found:
            raise PipelineError(
                f"the lake {self._lake.path} has no such records of topic {wanted.topic}; what it "
                'has: moldau pipeline sql --lake … "select topic, min(offset), max(offset), '
                'min(timestamp), max(timestamp) from records group by topic"'
            )
        targets = target.partitions
        if wanted.mode == KEEP and max(found) >= targets:
            raise PipelineError(
                f"the lake has partition {max(found)} of {wanted.topic}, and {wanted.target} has "
                f"{targets} partitions; give it more (moldau topics alter {wanted.target} "
                f"--partitions {max(found) + 1}), or let keys decide: --partitions hash"
            )
        self._warn_of_retention(target, found)
        sources = {}
        for partition, one in found.items():
            producer_id, epoch = _new_producer_id(cluster)
            sources[partition] = SourcePartition(producer_id, epoch, one.first, one.last, one.rows)
        return Job(
            wanted.topic,
            wanted.target,
            target.topic_id,
            cluster_id,
            wanted.mode,
            wanted.from_offset,
            wanted.from_time_ms,
            targets,
            target_offsets(cluster, wanted.target, range(targets), LATEST),
            sources,
        )

    def _resume(self, cluster: Cluster, job: Job, target: Target) -> Positions:
        if target.topic_id != job.target_id:
            raise PipelineError(
                f"topic {job.target} was deleted and created again since this replay began; begin "
                "it anew with --again"
            )
        found = self._found(self._rows(job.from_offset, job.from_time_ms, job))
        for partition, source in job.sources.items():
            rows = found[partition].rows if partition in found else 0
            if rows != source.rows:
                raise PipelineError(
                    f"partition {TopicPartition(job.topic, partition)}: the lake had "
                    f"{source.rows:,} records of it when this replay began and has {rows:,} of "
                    "them now; if that is right, begin anew with --again"
                )
        self._meter.say(f"reading from {job.target} how far it came")
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
        frame = frame.where(f.col("topic") == self._wanted.topic)
        if from_offset is not None:
            frame = frame.where(f.col("offset") >= from_offset)
        if from_time_ms is not None:
            frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(from_time_ms)))
        if job is not None:
            # What was archived since it began is not part of it.
            inside = f.lit(False)
            for partition, source in job.sources.items():
                inside = inside | (
                    (f.col("partition") == partition) & (f.col("offset") <= source.last)
                )
            frame = frame.where(inside)
        return frame

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
                    f"partition {TopicPartition(self._wanted.topic, partition)}: the lake has "
                    f"{rows:,} records under {distinct:,} offsets; the topic was deleted and "
                    "created again. Say with --from-time since when it is the one you mean"
                )
            found[partition] = LakePartition(first, last, rows, oldest_ms, size)
        self._bytes = sum(one.bytes for one in found.values())
        return dict(sorted(found.items()))

    def _warn_of_retention(self, target: Target, found: Mapping[int, LakePartition]) -> None:
        oldest_ms = min(one.oldest_ms for one in found.values())
        if target.retention_ms >= 0 and oldest_ms < time.time() * 1000 - target.retention_ms:
            self._meter.say(
                f"records older than retention.ms={target.retention_ms} of {self._wanted.target} "
                "will be deleted again as soon as the broker looks; to keep them: moldau topics "
                f"alter {self._wanted.target} --config retention.ms=-1"
            )

    # --- doing it ---

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
                CODECS[self._wanted.codec],
                batch_bytes,
            )
            for partition, source in job.sources.items()
        ]
        tasks = self._spark.sparkContext.parallelize(orders, len(orders))
        try:
            with _Watch(self._settings, job, self._meter, self._bytes / job.rows) as watch:
                told: list[SendResult] = tasks.map(send_partition).collect()
        except PySparkException as error:
            raise from_spark(error) from error
        passed = {one.partition: one.sent + one.skipped for one in told}
        wanted = {partition: source.rows for partition, source in job.sources.items()}
        if passed != wanted:
            raise PipelineError(
                f"{wanted} records by partition were to be sent and {passed} were read; did "
                "the lake change? Run it again, it goes on where it was"
            )
        watch.reached(job.rows)
        return sum(one.sent for one in told)


class LakePartition(NamedTuple):
    """What the lake has of a partition."""

    first: int
    last: int
    rows: int
    oldest_ms: int
    bytes: int


class Target(NamedTuple):
    topic_id: str
    partitions: int
    retention_ms: int
    batch_bytes: int


def _new_producer_id(cluster: Cluster) -> tuple[int, int]:
    answer = cluster.call(InitProducerIdRequest(None, 60_000))
    if answer.error_code:
        raise refusal("a producer id", answer.error_code)
    return answer.producer_id, answer.producer_epoch


class _Watch:
    """Shows how far it is by how the target grows: tasks cannot tell before they end."""

    def __init__(self, settings: FetchSettings, job: Job, meter: Meter, bytes_each: float) -> None:
        self._bytes_each = bytes_each
        self._settings = settings
        self._job = job
        self._meter = meter
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except ClientError as fault:
                logger.info("how far it is cannot be told just now: %s", fault)

    def _look(self) -> None:
        with connect(self._settings) as cluster:
            ends = target_offsets(cluster, self._job.target, self._job.begins, LATEST)
        grown = sum(end - self._job.begins[at] for at, end in ends.items())
        self.reached(min(grown, self._job.rows))

    def reached(self, done: int) -> None:
        more = max(done - self._seen, 0)
        self._seen += more
        self._meter.advance(more, int(more * self._bytes_each), self._job.rows - self._seen)
