"""The part of a replay that runs on executors: sends the records of one partition of the lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from broker.process import prepare_process
from broker.wire.records import NO_HEADERS, encode_headers
from ops.client import LATEST, Cluster, TopicPartition
from ops.pipeline.lake.ordered_rows import RecordRange, read_in_order
from ops.pipeline.replay.job import KEEP, Job, find_positions
from ops.pipeline.replay.partitioning import partition_of
from ops.pipeline.replay.producer import Producer, ProducerSettings
from ops.pipeline.source.fetch import FetchSettings, connect


def target_offsets(
    cluster: Cluster, topic: str, partitions: Iterable[int], at: int
) -> dict[int, int]:
    found = cluster.list_offsets({TopicPartition(topic, partition): at for partition in partitions})
    return {partition.partition: offset for partition, offset in found.items()}


class SendTask(NamedTuple):
    """What a task sends: the records of one partition of the lake."""

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


def send_partition(order: SendTask) -> SendResult:
    """Sends what is not there yet, in order."""
    from pyspark import TaskContext

    prepare_process()
    job, partition = order.job, order.rows.topic_partition.partition
    position = order.position
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        # Another try of this task came before: how far, only the target knows.
        with connect(order.settings) as cluster:
            ends = target_offsets(cluster, job.target, job.begins, LATEST)
        position = find_positions(order.settings, job, ends, partition)[partition]
    source = job.sources[partition]
    producing = ProducerSettings(
        order.settings,
        job.target,
        source.producer_id,
        source.producer_epoch,
        order.codec,
        order.batch_bytes,
    )
    sender = Producer(producing, position)
    left_out = dict(position)
    sent = skipped = 0
    try:
        for rows in read_in_order(order.rows):
            for target, stamp, key, value, headers in _records(rows, job, partition):
                if left_out.get(target, 0):
                    left_out[target] -= 1
                    skipped += 1
                else:
                    sender.add(target, stamp, key, value, headers)
                    sent += 1
        sender.flush()
    finally:
        sender.close()
    return SendResult(partition, sent, skipped, sender.bytes)


def _records(rows: Any, job: Job, partition: int) -> Iterator[Any]:
    """Target partition, timestamp, key, value and headers of each."""
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
