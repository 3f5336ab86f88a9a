"""The state of a replay on disk, and how it finds out where it stopped.

A job is written to `LAKE/_moldau/replay/NAME.json` before the first record is sent: the records to
send (per partition a range of offsets and a count), and a producer id for each partition they come
from. That fixes the sequence number of every record. So the position is not stored anywhere, but
read from the target, whose batches carry these producer ids and sequences. A record that is in the
log counts, acknowledged or not.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from moldau.ops.client import Cluster, TopicPartition
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.data_files import sync_directory
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.source.fetch import FetchSettings, OffsetRange, RangeReader

KEEP, HASH = "keep", "hash"
_WORD = re.compile(r"[^A-Za-z0-9._-]+")


class SourcePartition(msgspec.Struct, frozen=True):
    """A partition in the lake: its records from `first` to `last`, and their producer id."""

    producer_id: int
    producer_epoch: int
    first: int
    last: int
    rows: int


class Job(msgspec.Struct):
    topic: str
    target: str
    target_id: str
    cluster_id: str
    mode: str
    from_offset: int | None
    from_time_ms: int | None
    targets: int
    """Partitions of the target when the job began; keys are hashed over these."""
    begins: dict[int, int]
    """The end offsets of the target when the job began."""
    sources: dict[int, SourcePartition]
    done_at: str | None = None
    epochs: dict[int, int] = {}
    """The leader epochs of the target when the job began."""

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources.values())


Positions = dict[int, dict[int, int]]
"""For each source partition, the number of its records in each target partition."""


def job_name(
    topic: str,
    target: str,
    cluster_id: str,
    mode: str,
    from_offset: int | None,
    from_time_ms: int | None,
) -> str:
    """The same for the same command, which thereby resumes its job."""
    words = [topic, "to", target, mode, cluster_id]
    if from_offset is not None:
        words.append(f"from-{from_offset}")
    if from_time_ms is not None:
        words.append(f"since-{from_time_ms}")
    return _WORD.sub("_", "-".join(words))


def job_path(lake: Lake, name: str) -> Path:
    return lake.state_path / "replay" / f"{name}.json"


def load_job(path: Path) -> Job | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise PipelineError(
            f"{path} is not a replay job: {error}; start over with --again"
        ) from None


def save_job(path: Path, job: Job) -> None:
    """Durable when this returns."""
    new = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(job), indent=2))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_directory(path.parent)


def finish_job(path: Path, job: Job) -> None:
    job.done_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    save_job(path, job)


def target_offsets(
    cluster: Cluster, topic: str, partitions: Iterable[int], at: int
) -> dict[int, int]:
    """The offset of each partition; `at` is EARLIEST or LATEST."""
    found = cluster.list_offsets({TopicPartition(topic, partition): at for partition in partitions})
    return {partition.partition: offset for partition, offset in found.items()}


def find_positions(
    settings: FetchSettings,
    job: Job,
    ends: Mapping[int, int],
    only: int | None = None,
    on_skip: Callable[[int, int], None] | None = None,
) -> Positions:
    """Read the target from where it ended when the job began. `only`: for one source partition.

    `on_skip`: called with a target partition and how many sequences are missing in it.
    """
    by_producer = {
        source.producer_id: partition
        for partition, source in job.sources.items()
        if only is None or only == partition
    }
    positions: Positions = {partition: {} for partition in by_producer.values()}
    reader = RangeReader(settings._replace(fail_on_data_loss=False))
    try:
        for target, begin in job.begins.items():
            if job.mode == KEEP and only is not None and target != only:
                continue
            topic_partition = TopicPartition(job.target, target)
            for batches in reader.read(
                OffsetRange(topic_partition, begin, ends.get(target, begin))
            ):
                for header in (one.header for one in batches):
                    partition = by_producer.get(header.producer_id)
                    if partition is not None and header.base_sequence >= 0:
                        # Not the count of records: compaction removes some and keeps the sequences.
                        following = header.base_sequence + header.last_offset_delta + 1
                        skipped = header.base_sequence - positions[partition].get(target, 0)
                        if skipped and on_skip is not None:
                            on_skip(target, skipped)
                        positions[partition][target] = following
    finally:
        reader.close()
    return positions


def check_trimmed(job: Job, positions: Positions, starts: Mapping[int, int]) -> None:
    """Batches that were trimmed tell no position. Raises PipelineError."""
    for target, begin in job.begins.items():
        start = starts.get(target, begin)
        silent = [p for p, counts in positions.items() if target not in counts]
        if job.mode == KEEP:
            silent = [p for p in silent if p == target]
        if start > begin and silent:
            raise PipelineError(
                f"partition {TopicPartition(job.target, target)} now begins at {start}, and the "
                f"replay began at {begin}: records it sent may have been trimmed (retention.ms, "
                "retention.bytes), so its position is unknown. Give the topic a longer retention, "
                "empty it, and start over with --again"
            )


def check_kept(
    settings: FetchSettings, job: Job, ends: Mapping[int, int], epochs: Mapping[int, int]
) -> None:
    """Is everything that was sent still there? Raises PipelineError.

    A store that fails may lose what it has acknowledged, and the log goes on in a new leader epoch.
    Only then is the target read once more.
    """
    raised = [at for at in job.begins if epochs.get(at, 0) != job.epochs.get(at, 0)]
    if not raised:
        return
    missing = dict.fromkeys(raised, 0)

    def count(target: int, skipped: int) -> None:
        missing[target] = missing.get(target, 0) + skipped

    positions = find_positions(settings, job, ends, on_skip=count)
    there = sum(sum(counts.values()) for counts in positions.values()) - sum(missing.values())
    if there < job.rows:
        names = ", ".join(str(TopicPartition(job.target, at)) for at in sorted(raised))
        raise PipelineError(
            f"{job.rows - there:,} of {job.rows:,} records were sent and are no longer there: the "
            f"store of the target failed meanwhile and lost the end of {names} (`moldau topics "
            "describe` shows the gaps). Empty the topic, and start over with --again"
        )
