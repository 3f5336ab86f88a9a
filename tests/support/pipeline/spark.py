"""Topics with known content for the tests of the pipeline, and a Spark session.

Record `i` of a partition is a function of the two numbers, so what was produced need not be kept to
be compared with what is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau.ops.pipeline.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_750_000_000_000
_FILLER = bytes(range(256)) * 8


@contextmanager
def spark_session(master: str = "local[2,4]") -> Iterator[SparkSession]:
    """A small one with the source registered, stopped afterwards."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 1g pyspark-shell"
    session = start_session("moldau-tests", master, plans_only=True)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        yield session
    finally:
        session.stop()


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(20)


def key_of(partition: int, index: int) -> bytes | None:
    return None if index % 11 == 3 else b"%d:%d" % (partition, index)


def value_of(partition: int, index: int) -> bytes | None:
    if index % 97 == 5:
        return None
    return b"%d/%d/" % (partition, index) + _FILLER[: index * 7 % 180]


def headers_of(partition: int, index: int) -> list[tuple[str, str | bytes | None]]:
    if index % 5:
        return []
    both: list[tuple[str, str | bytes | None]] = [("origin", b"%d" % partition), ("nothing", None)]
    return both[: 1 + index % 2]


def timestamp_of(index: int) -> int:
    return FIRST_MS + index


def produce(
    bootstrap: str, topic: str, places: Iterable[tuple[int, int]], codec: str = "none"
) -> None:
    """Records `(partition, index)`, in this order and acknowledged."""
    faults: list[object] = []

    def delivered(fault: object, message: object) -> None:
        if fault is not None:
            faults.append(fault)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 10,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for count, (partition, index) in enumerate(places):
        while True:
            try:
                producer.produce(
                    topic,
                    value_of(partition, index),
                    key_of(partition, index),
                    partition,
                    on_delivery=delivered,
                    timestamp=timestamp_of(index),
                    headers=headers_of(partition, index) or None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if count % 500 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    assert not faults, faults[:3]


def fill(bootstrap: str, topic: str, partitions: int, per_partition: int, first: int = 0) -> None:
    """Records `first` to `first + per_partition` of every partition, all codecs by turns."""
    share = -(-per_partition // len(CODECS))
    last = first + per_partition
    for turn, codec in enumerate(CODECS):
        begin = first + turn * share
        indexes = range(begin, min(begin + share, last))
        produce(bootstrap, topic, ((p, i) for i in indexes for p in range(partitions)), codec)
