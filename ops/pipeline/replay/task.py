"""A task of a replay, for executors: sends the records of one partition of the lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from moldau.broker.process import prepare_process
from moldau.broker.wire.records import NO_HEADERS, encode_headers
from moldau.ops.client import LATEST
from moldau.ops.client.partitioning import partition_of
from moldau.ops.pipeline.lake.ordered_rows import RecordRange, read_in_order
from moldau.ops.pipeline.replay.job import KEEP, Job, find_positions, target_offsets
from moldau.ops.pipeline.replay.producer import Producer, ProducerSettings
from moldau.ops.pipeline.source.fetch import FetchSettings, connect


class SendTask(NamedTuple):
    """The records of one partition of the lake, and how to send them."""

    settings: FetchSettings
    job: Job
    rows: RecordRange
    position: dict[int, int]
    codec: int
    batch_bytes: int


class SendResult(NamedTuple):
    partition: int
    sent: int
    skipped: int
    size: int


def send_partition(task: SendTask) -> SendResult:
    """Send the records that are not in the target yet, in order."""
    from pyspark import TaskContext

    prepare_process()
    job, partition = task.job, task.rows.topic_partition.partition
    position = task.position
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        # An earlier attempt of this task may have sent some.
        with connect(task.settings) as cluster:
            ends = target_offsets(cluster, job.target, job.begins, LATEST)
        position = find_positions(task.settings, job, ends, partition)[partition]
    source = job.sources[partition]
    settings = ProducerSettings(
        task.settings,
        job.target,
        source.producer_id,
        source.producer_epoch,
        task.codec,
        task.batch_bytes,
    )
    producer = Producer(settings, position)
    to_skip = dict(position)
    sent = skipped = 0
    try:
        for rows in read_in_order(task.rows):
            for target, stamp, key, value, headers in _records(rows, job, partition):
                if to_skip.get(target, 0):
                    to_skip[target] -= 1
                    skipped += 1
                else:
                    producer.add(target, stamp, key, value, headers)
                    sent += 1
        producer.flush()
    finally:
        producer.close()
    return SendResult(partition, sent, skipped, producer.bytes)


def _records(rows: Any, job: Job, partition: int) -> Iterator[Any]:
    """Target partition, timestamp, key, value and encoded headers of each."""
    keys = rows.column("key").to_pylist()
    headers = rows.column("headers")
    if job.mode == KEEP:
        targets: Iterable[int] = repeat(partition, len(keys))
    else:
        offsets = rows.column("offset").to_pylist()
        targets = map(partition_of, keys, offsets, repeat(job.targets))
    return zip(
        targets,
        (rows.column("timestamp").cast(pa.int64()).to_numpy() // 1000).tolist(),
        keys,
        rows.column("value").to_pylist(),
        _encoded(headers) if headers.null_count < len(headers) else repeat(NO_HEADERS, len(keys)),
        strict=True,
    )


def _encoded(headers: Any) -> list[bytes]:
    return [
        NO_HEADERS if not one else encode_headers((h["key"], h["value"]) for h in one)
        for one in headers.to_pylist()
    ]
