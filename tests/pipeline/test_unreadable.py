"""Batches that cannot be read: archived as they are, left out of a replay, never in the way."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException

from moldau.broker.wire.batch import CorruptBatch, read_header
from moldau.ops.client import TopicPartition, parse_address
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.errors import DataLoss
from moldau.ops.pipeline.lake.compact import Compactor
from moldau.ops.pipeline.lake.query import table_frame
from moldau.ops.pipeline.lake.schemas import BATCHES, PARTITIONED_BY, RECORDS, SCHEMAS
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.progress import Meter
from moldau.ops.pipeline.replay.replayer import Replayer, ReplayRequest
from moldau.ops.pipeline.source.data_source import TaskRanges, read_ranges
from moldau.ops.pipeline.source.decode import FetchedBatch, decode
from moldau.ops.pipeline.source.fetch import FetchSettings, OffsetRange
from moldau.ops.pipeline.source.options import read_options
from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import rows_of
from tests.support.pipeline.spark import create_topic
from tests.support.pipeline.topic_rows import rows_in
from tests.support.raw.client import make_batch
from tests.support.raw.unreadable import KINDS, plant, unreadable_batches
from tests.support.raw.unreadable import RECORDS as CLAIMED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = 1_700_000_000_000
_names = (f"unreadable-{number}" for number in itertools.count())


def good(number: int) -> bytearray:
    return make_batch([(b"k", b"good-%d-%d" % (number, at), TIME + number) for at in range(2)])


@pytest.fixture
def topic(moldau: Broker) -> str:
    """Good batches of two records, and between them one of each kind that cannot be read."""
    name = next(_names)
    create_topic(moldau.bootstrap, name, 1)
    batches = [good(0)]
    for number, bad in enumerate(unreadable_batches(TIME).values(), 1):
        batches += [bad, good(number)]
    with redis.from_url(moldau.store_url) as store:
        assert plant(store, name, batches) == END
    return name


END = 2 + len(KINDS) * (CLAIMED + 2)
BAD = [2 + number * (CLAIMED + 2) for number in range(len(KINDS))]
VALUES = [b"good-%d-%d" % (number, at) for number in range(len(KINDS) + 1) for at in range(2)]


def archive(
    spark: SparkSession, broker: Broker, lake: Lake, topic: str, max_records: int = 1000
) -> Meter:
    meter = Meter("archive")
    settings = ArchiveSettings(broker.bootstrap, (topic,), max_records=max_records)
    Archiver(spark, lake, settings, meter).run(continuous=False)
    return meter


def check(lake: Lake) -> None:
    records = rows_of(lake, RECORDS).sort_by("offset")
    assert records["value"].to_pylist() == VALUES
    batches = rows_of(lake, BATCHES).sort_by("base_offset").to_pylist()
    at = 0
    for row in batches:
        assert row["base_offset"] == at == read_header(row["data"]).base_offset
        at = row["last_offset"] + 1
    assert at == END
    marked = [row for row in batches if row["unreadable"]]
    assert [row["base_offset"] for row in marked] == BAD
    planted = list(unreadable_batches(TIME).values())
    assert [row["data"][8:] for row in marked] == [bytes(batch[8:]) for batch in planted]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "cannot be read" in r.message]


def test_one_bad_batch_costs_its_neighbours_nothing() -> None:
    batches = [good(0), *unreadable_batches(TIME).values(), good(1)]
    fetched = [FetchedBatch(read_header(one), one, 0, 1 << 60) for one in batches]
    bad: list[FetchedBatch] = []
    columns = decode(fetched, headers=True, on_unreadable=lambda one, _: bad.append(one))
    values = [value.as_py() for portion in columns for value in portion.value]
    assert values == [b"good-0-0", b"good-0-1", b"good-1-0", b"good-1-1"]
    assert {id(one) for one in bad} == {id(one) for one in fetched[1:-1]}
    for one in fetched[1:-1]:
        with pytest.raises(CorruptBatch):
            list(decode([one], headers=True))


def test_they_are_archived_as_they_are(
    spark: SparkSession,
    moldau: Broker,
    lake: Lake,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = archive(spark, moldau, lake, topic)
    check(lake)
    assert f"{len(KINDS)} unreadable batches" in meter.summary()
    found = messages(caplog)
    assert len(found) == len(KINDS)
    assert f"{topic}-0: the batch at offset {BAD[0]} cannot be read" in found[0]
    # It goes on behind them, and compaction keeps the mark.
    archive(spark, moldau, lake, topic)
    assert len(messages(caplog)) == len(KINDS)
    Compactor(spark, lake).run()
    check(lake)


def test_ranges_may_end_inside_of_them(
    spark: SparkSession, moldau: Broker, lake: Lake, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    archive(spark, moldau, lake, topic, max_records=4)
    check(lake)
    assert len(messages(caplog)) == len(KINDS)


def source_rows(broker: Broker, topic: str, *ranges: tuple[int, int], **given: str) -> list[bytes]:
    """The values a task of the source reads, here and not on an executor."""
    options = read_options(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **given}
    )
    wanted = [OffsetRange(TopicPartition(topic, 0), *one) for one in ranges]
    rows = read_ranges(options, TaskRanges(wanted))
    return [value for portion in rows for value in portion["value"].to_pylist()]


def test_the_source_skips_them_on_request(
    spark: SparkSession, moldau: Broker, topic: str, tmp_path: Path
) -> None:
    reader = spark.read.format("moldau").option("kafka.bootstrap.servers", moldau.bootstrap)
    frame = reader.option("subscribe", topic).option("onUnreadable", "skip").load()
    assert [row.value for row in frame.orderBy("offset").collect()] == VALUES

    read: list[bytes] = []
    stream = spark.readStream.format("moldau").option("kafka.bootstrap.servers", moldau.bootstrap)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")

    def run(on_unreadable: str) -> None:
        query = (
            stream.option("onUnreadable", on_unreadable)
            .load()
            .writeStream.foreachBatch(
                lambda frame, _: read.extend(r.value for r in frame.orderBy("offset").collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    with pytest.raises(PySparkException, match=f"the batch at offset {BAD[0]} cannot be read"):
        run("fail")
    run("skip")  # with the same checkpoint
    assert read == VALUES


def test_the_source_fails_by_default_and_names_the_remedy(moldau: Broker, topic: str) -> None:
    with pytest.raises(DataLoss, match=r"onUnreadable=skip") as caught:
        source_rows(moldau, topic, (0, END))
    assert f"{topic}-0: the batch at offset {BAD[0]} cannot be read" in str(caught.value)
    assert source_rows(moldau, topic, (0, BAD[0])) == VALUES[:2]
    assert source_rows(moldau, topic, (0, END), failOnDataLoss="false") == VALUES
    with pytest.raises(DataLoss):
        source_rows(moldau, topic, (0, END), failOnDataLoss="false", onUnreadable="fail")


def test_the_source_counts_and_logs_what_it_skips(
    moldau: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    inside = BAD[0] + 1  # two tasks share the first of them
    assert source_rows(moldau, topic, (0, inside), (inside, END), onUnreadable="skip") == VALUES
    found = messages(caplog)
    assert len(found) == len(KINDS) + 1
    assert f"offsets {BAD[0]} to {BAD[0]} left out" in found[0]
    assert f"offsets {inside} to {inside + 1} left out" in found[1]
    assert f"partition {topic}-0: 1 unreadable batches with 1 offsets left out" in caplog.text
    assert f"{len(KINDS)} unreadable batches with {len(KINDS) * CLAIMED - 1} offsets" in caplog.text


def test_a_replay_leaves_them_out_and_counts_them(
    spark: SparkSession, moldau: Broker, lake: Lake, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    archive(spark, moldau, lake, topic)
    caplog.clear()
    create_topic(moldau.bootstrap, f"{topic}-again", 1)
    request = ReplayRequest(topic, f"{topic}-again")
    settings = FetchSettings((parse_address(moldau.bootstrap),))
    outcome = Replayer(spark, lake, settings, request).run()
    assert outcome == (len(VALUES), len(VALUES), None, len(KINDS))
    assert [row.value for row in rows_in(moldau, f"{topic}-again")] == VALUES
    (found,) = messages(caplog)
    assert f"topic {topic}: {len(KINDS)} batches" in found


def test_a_lake_of_an_older_version_gets_the_column(
    spark: SparkSession, moldau: Broker, topic: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "older")
    older = SCHEMAS[BATCHES].remove(SCHEMAS[BATCHES].get_field_index("unreadable"))
    day = datetime.datetime.fromtimestamp(TIME / 1000, datetime.UTC)
    row = dict.fromkeys(older.names) | {
        "topic": "other",
        "date": day.date(),
        "partition": 0,
        "max_timestamp": day,
        "base_offset": 0,
        "last_offset": 1,
        "data": b"some",
    }
    table = DeltaTable.create(lake.table_path(BATCHES), older, partition_by=PARTITIONED_BY)
    write_deltalake(table, pa.Table.from_pylist([row], schema=older), mode="append")
    lake.create()
    assert [field.name for field in lake.open(BATCHES).schema().fields] == SCHEMAS[BATCHES].names
    version = lake.open(BATCHES).version()
    lake.create()
    assert lake.open(BATCHES).version() == version
    archive(spark, moldau, lake, topic)
    for _ in range(2):
        rows = rows_of(lake, BATCHES).to_pylist()
        assert [one["unreadable"] for one in rows if one["topic"] == "other"] == [None]
        assert sum(one["unreadable"] is not None for one in rows) == len(KINDS)
        assert table_frame(spark, lake, BATCHES).where("unreadable is null").count() == (
            len(rows) - len(KINDS)
        )
        Compactor(spark, lake).run()
