"""What a replay remembers, durably, and how it finds out where it was.

A job is written to `LAKE/_moldau/replay/NAME.json` before the first record is sent: which records
it is about (per partition a range of offsets and a count), and a producer id for each partition it
reads from. From then on the sequence number of every record is settled, whoever sends it: so the
position is not written down anywhere, but read from the target itself, where the batches of these
producers stand with their sequences. A record that is in the log counts, acknowledged or not.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ops.client import TopicPartition
from ops.pipeline.errors import PipelineError
from ops.pipeline.lake.data_files import sync_directory
from ops.pipeline.lake.tables import Lake
from ops.pipeline.source.fetch import FetchSettings, OffsetRange, RangeReader

KEEP, HASH = "keep", "hash"
MODES = (KEEP, HASH)
_WORD = re.compile(r"[^A-Za-z0-9._-]+")


class SourcePartition(msgspec.Struct, frozen=True):
    """A partition of the lake's topic: the records from `first` to `last`, and who sends them."""

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
    """Partitions of the target when the job began: keys go where they went then."""
    begins: dict[int, int]
    """The end offsets of the target when the job began."""
    sources: dict[int, SourcePartition]
    done_at: str | None = None

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources.values())


Positions = dict[int, dict[int, int]]
"""Of each source partition: how many of its records are in each target partition."""


def job_name(
    topic: str,
    target: str,
    cluster_id: str,
    mode: str,
    from_offset: int | None,
    from_time_ms: int | None,
) -> str:
    """The same for the same command, so that it goes on where it was."""
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
            f"{path} is not what a replay writes there: {error}; with --again it is begun anew"
        ) from None


def save_job(path: Path, job: Job) -> None:
    """On the disk when this returns."""
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


def find_positions(
    settings: FetchSettings, job: Job, ends: Mapping[int, int], only: int | None = None
) -> Positions:
    """Reads the target from where it was when the job began. `only`: of one source partition."""
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
                        # Not the count of records: compaction leaves the sequences as they were.
                        following = header.base_sequence + header.last_offset_delta + 1
                        positions[partition][target] = following
    finally:
        reader.close()
    return positions


def check_trimmed(job: Job, positions: Positions, starts: Mapping[int, int]) -> None:
    """Batches of ours that are gone from the log say nothing. Raises PipelineError."""
    for target, begin in job.begins.items():
        start = starts.get(target, begin)
        silent = [p for p, counts in positions.items() if target not in counts]
        if job.mode == KEEP:
            silent = [p for p in silent if p == target]
        if start > begin and silent:
            raise PipelineError(
                f"partition {TopicPartition(job.target, target)} begins at {start} by now, and the "
                f"replay began at {begin}: what it had sent may have been trimmed (retention.ms, "
                "retention.bytes), so where it was cannot be told. Give the topic a longer "
                "retention, empty it, and begin anew with --again"
            )
