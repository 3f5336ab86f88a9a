"""The source `moldau` in Spark: columns, options, streams, new partitions, lost data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
)
from pyspark.errors import PySparkException

from tests.support.brokers.running import Broker
from tests.support.pipeline.spark import (
    FIRST_MS,
    create_topic,
    fill,
    headers_of,
    key_of,
    produce,
    timestamp_of,
    value_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def filled(moldau: Broker) -> str:
    """A topic of three partitions with 700 records each."""
    create_topic(moldau.bootstrap, "source", 3)
    fill(moldau.bootstrap, "source", 3, 700)
    return "source"


def batch(spark: "SparkSession", broker: Broker, **options: str) -> "DataFrame":
    reader = spark.read.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**options).load()


def offsets_by_partition(frame: "DataFrame") -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row[0], []).append(row[1])
    return found


def test_columns_are_those_of_sparks_own_source(
    spark: "SparkSession", moldau: Broker, filled: str
) -> None:
    frame = batch(spark, moldau, subscribe=filled, includeHeaders="true")
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"),
        ("offset", "bigint"), ("timestamp", "timestamp"), ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    rows = frame.selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert len(rows) == 2100
    for row in rows:
        partition, index = row.partition, row.offset
        assert row.key == key_of(partition, index)
        assert row.value == value_of(partition, index)
        assert row.ms == timestamp_of(index)
        assert (row.topic, row.timestampType) == (filled, 0)
        headers = [(one.key, one.value) for one in row.headers or ()]
        assert headers == headers_of(partition, index)
        assert row.headers is None or headers


def test_ranges_by_offset_timestamp_and_partition(
    spark: "SparkSession", moldau: Broker, filled: str
) -> None:
    start = json.dumps({filled: {"0": 5, "1": -2, "2": 699}})
    end = json.dumps({filled: {"0": 9, "1": 2, "2": -1}})
    frame = batch(spark, moldau, subscribe=filled, startingOffsets=start, endingOffsets=end)
    assert offsets_by_partition(frame) == {0: [5, 6, 7, 8], 1: [0, 1], 2: [699]}
    frame = batch(
        spark, moldau, assign=json.dumps({filled: [1]}), startingTimestamp=str(FIRST_MS + 100),
        endingOffsetsByTimestamp=json.dumps({filled: {"1": FIRST_MS + 103}}),
    )  # fmt: skip
    assert offsets_by_partition(frame) == {1: [100, 101, 102]}
    frame = batch(spark, moldau, subscribePattern="sour.e", minPartitions="10")
    assert frame.rdd.getNumPartitions() == 9  # as near as it comes in equal shares
    assert {p: sorted(o) for p, o in offsets_by_partition(frame).items()} == {
        p: list(range(700)) for p in range(3)
    }


def refused(frame: "DataFrame") -> str:
    with pytest.raises(PySparkException) as caught:
        frame.count()
    return str(caught.value)


def test_errors_name_the_remedy(spark: "SparkSession", moldau: Broker, filled: str) -> None:
    late = str(FIRST_MS + 10_000)
    error = refused(batch(spark, moldau, subscribe=filled, startingTimestamp=late))
    assert "startingOffsetsByTimestampStrategy=latest" in error
    frame = batch(
        spark, moldau, subscribe=filled, startingTimestamp=late,
        startingOffsetsByTimestampStrategy="latest",
    )  # fmt: skip
    assert frame.count() == 0
    partial = json.dumps({filled: {"0": 5}})
    error = refused(batch(spark, moldau, subscribe=filled, startingOffsets=partial))
    assert "every partition" in error
    assert "source-1, source-2" in error
    assert "moldau topics list" in refused(batch(spark, moldau, subscribe="nowhere-to-be-seen"))
    error = refused(batch(spark, moldau, subscribe=filled, startingOffsets="latest"))
    assert "cannot begin at the latest" in error


class Stream:
    """A stream with a checkpoint, which may be run several times."""

    def __init__(self, spark: "SparkSession", broker: Broker, checkpoint: Path, **options: str):
        self._spark = spark
        self._broker = broker
        self._checkpoint = checkpoint
        self._options = options
        self.rows: list[tuple[int, int]] = []
        self.batches: list[dict[str, Any]] = []

    def run(self, **more: str) -> None:
        """Read all that is available now."""

        def collect(frame: "DataFrame", batch_id: int) -> None:
            self.rows += [(r[0], r[1]) for r in frame.select("partition", "offset").collect()]

        reader = self._spark.readStream.format("moldau")
        reader = reader.option("kafka.bootstrap.servers", self._broker.bootstrap)
        query = (
            reader.options(**{**self._options, **more})
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self.batches = [json.loads(progress.json) for progress in query.recentProgress]


def test_a_stream_goes_on_where_it_was_and_finds_new_partitions(
    spark: "SparkSession", moldau: Broker, tmp_path: Path
) -> None:
    create_topic(moldau.bootstrap, "stream", 2)
    fill(moldau.bootstrap, "stream", 2, 300)
    stream = Stream(
        spark, moldau, tmp_path / "checkpoint", subscribe="stream", startingOffsets="earliest",
        maxOffsetsPerTrigger="250",
    )  # fmt: skip
    stream.run()
    assert sorted(stream.rows) == [(p, i) for p in range(2) for i in range(300)]
    counts = [one["numInputRows"] for one in stream.batches if one["numInputRows"]]
    assert counts == [250, 250, 100]

    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    admin.create_partitions([NewPartitions("stream", 3)])["stream"].result(20)
    produce(moldau.bootstrap, "stream", [(2, i) for i in range(40)] + [(0, 300)], "lz4")
    stream.rows.clear()
    stream.run()
    assert sorted(stream.rows) == [(0, 300), *[(2, i) for i in range(40)]]


def test_a_stream_begins_with_what_comes_by_default(
    spark: "SparkSession", moldau: Broker, tmp_path: Path
) -> None:
    create_topic(moldau.bootstrap, "stream-latest", 1)
    produce(moldau.bootstrap, "stream-latest", [(0, i) for i in range(10)])
    stream = Stream(spark, moldau, tmp_path / "checkpoint", subscribe="stream-latest")
    stream.run()
    assert stream.rows == []
    produce(moldau.bootstrap, "stream-latest", [(0, i) for i in range(10, 13)])
    stream.run()
    assert stream.rows == [(0, 10), (0, 11), (0, 12)]


def test_records_lost_before_they_were_read(
    spark: "SparkSession", moldau: Broker, tmp_path: Path
) -> None:
    create_topic(moldau.bootstrap, "stream-lost", 1)
    produce(moldau.bootstrap, "stream-lost", [(0, i) for i in range(50)])
    stream = Stream(
        spark, moldau, tmp_path / "checkpoint", subscribe="stream-lost", startingOffsets="earliest"
    )
    stream.run()
    produce(moldau.bootstrap, "stream-lost", [(0, i) for i in range(50, 100)])
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    gone = TopicPartition("stream-lost", 0, 70)
    admin.delete_records([gone])[gone].result(20)
    stream.rows.clear()
    with pytest.raises(PySparkException, match="failOnDataLoss=false"):
        stream.run()
    assert stream.rows == []
    stream.run(failOnDataLoss="false")
    assert stream.rows == [(0, i) for i in range(70, 100)]
