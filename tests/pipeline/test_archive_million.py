"""A million records over twelve partitions with all codecs, and how fast that is.

On demand: `pytest -m slow -s tests/pipeline/test_archive_million.py`. The figures it prints are
ratios to a plain consumer loop of confluent-kafka in the same run, by turns.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.lake.schemas import RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import check_lake
from tests.support.pipeline.process import Archiving
from tests.support.pipeline.spark import create_topic, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 12
EACH = 83_334
RECORDS_IN_ALL = PARTITIONS * EACH


def consume(broker: Broker) -> tuple[float, int]:
    """Seconds and bytes of a loop that reads every record and keeps none."""
    began = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "plain-loop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("million", p, 0) for p in range(PARTITIONS)])
    count = size = 0
    while count < RECORDS_IN_ALL:
        for message in consumer.consume(5000, 10):
            assert message.error() is None
            key: Any = message.key()
            value: Any = message.value()
            size += len(key or b"") + len(value or b"")
            count += 1
    consumer.close()
    return time.perf_counter() - began, size


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_records(moldau: Broker, spark: "SparkSession", tmp_path: Path) -> None:
    create_topic(moldau.bootstrap, "million", PARTITIONS)
    fill(moldau.bootstrap, "million", PARTITIONS, EACH)

    first = Archiving(moldau, "million", tmp_path / "cold")
    began = time.perf_counter()
    first.start("--once", "--max-records", "50000", master="local[2,4]")
    first.wait_commits(1)
    print(f"\nfrom the command to the first commit: {time.perf_counter() - began:.1f} s")
    first.wait_done()
    check_lake(first.lake, "million", [EACH] * PARTITIONS)

    for turn in range(3):
        seconds, size = consume(moldau)
        lake = Lake(tmp_path / f"lake-{turn}")
        lake.create()
        began = time.perf_counter()
        Archiver(spark, lake, ArchiveSettings(moldau.bootstrap, ("million",))).run(continuous=False)
        taken = time.perf_counter() - began
        print(
            f"plain loop {RECORDS_IN_ALL / seconds:,.0f} records/s {size / seconds / 1e6:.1f}"
            f" MB/s; archive {RECORDS_IN_ALL / taken:,.0f} records/s {size / taken / 1e6:.1f}"
            f" MB/s, {seconds / taken:.2f} of it"
        )
        assert lake.open(RECORDS).to_pyarrow_table(columns=["offset"]).num_rows == (RECORDS_IN_ALL)
