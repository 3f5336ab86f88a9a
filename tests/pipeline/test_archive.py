"""The archiver on a real broker: every record once, offsets committed; and its errors."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.broker.log.keeping.archived import ARCHIVE_GROUP
from moldau.ops.client import ClientError
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings, archiver_lock
from moldau.ops.pipeline.errors import DataLoss, PipelineError
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, TABLES
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker
from tests.support.pipeline.lakes import check_lake, check_records, rows_of
from tests.support.pipeline.spark import create_topic, fill, key_of, produce, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(
    spark: "SparkSession", broker: Broker, lake: Lake, *topics: str, **more: object
) -> None:
    settings = ArchiveSettings(broker.bootstrap, topics)._replace(**more)  # type: ignore[arg-type]
    Archiver(spark, lake, settings).run(continuous=False)


def test_many_records_over_twelve_partitions_with_all_codecs(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    create_topic(moldau.bootstrap, "archive-many", 12)
    fill(moldau.bootstrap, "archive-many", 12, 2000)
    archive(spark, moldau, lake, "archive-many", max_records=10_000)
    check_lake(lake, "archive-many", [2000] * 12)
    assert set(rows_of(lake, BATCHES, ["codec"])["codec"].to_pylist()) == {
        "none", "gzip", "snappy", "lz4", "zstd"}  # fmt: skip
    assert len(lake.open(RECORDS).history()) == 1 + 3  # its creation, and three commits


def test_it_resumes_where_the_lake_ends_with_or_without_a_checkpoint(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    create_topic(moldau.bootstrap, "archive-on", 2)
    fill(moldau.bootstrap, "archive-on", 2, 300)
    archive(spark, moldau, lake, "archive-on")
    versions = [lake.open(table).version() for table in TABLES]
    archive(spark, moldau, lake, "archive-on")
    assert [lake.open(table).version() for table in TABLES] == versions

    produce(moldau.bootstrap, "archive-on", [(0, i) for i in range(300, 350)], "zstd")
    shutil.rmtree(lake.checkpoint)
    archive(spark, moldau, lake, "archive-on")
    check_lake(lake, "archive-on", [350, 300])


def test_resuming_after_no_commit_or_that_of_one_table_only(
    spark: "SparkSession", moldau: Broker, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may come when tasks have written their files, or between the two commits."""
    create_topic(moldau.bootstrap, "archive-half", 2)
    fill(moldau.bootstrap, "archive-half", 2, 200)
    commit = Lake.commit
    for failing in (BATCHES, RECORDS):

        def commit_until(self: Lake, table: str, *rest: object, failing: str = failing) -> int:
            if table == failing:
                raise PipelineError("the disk is full")
            return commit(self, table, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(Lake, "commit", commit_until)
        with pytest.raises(PipelineError, match=r"^the disk is full$"):
            archive(spark, moldau, lake, "archive-half")
        assert bool(rows_of(lake, BATCHES).num_rows) == (failing == RECORDS)
        assert rows_of(lake, RECORDS).num_rows == 0
        assert list(lake.table_path(failing).glob("topic=*/*/*.parquet"))
    monkeypatch.undo()
    produce(moldau.bootstrap, "archive-half", [(1, i) for i in range(200, 210)])
    archive(spark, moldau, lake, "archive-half")
    check_lake(lake, "archive-half", [200, 210])


def test_a_range_may_end_inside_a_batch_and_archived_offsets_are_committed(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    """Twenty records per commit, and larger batches: each batch is still stored once."""
    create_topic(moldau.bootstrap, "archive-inside", 1)
    produce(moldau.bootstrap, "archive-inside", [(0, i) for i in range(95)], "lz4")
    archive(spark, moldau, lake, "archive-inside", max_records=20)
    check_lake(lake, "archive-inside", [95])
    (group,) = Cli(moldau).json("groups", "describe", ARCHIVE_GROUP)["groups"]
    mine = [one for one in group["partitions"] if one["topic"] == "archive-inside"]
    assert [(one["committed_offset"], one["lag"]) for one in mine] == [(95, 0)]


def test_a_topic_that_is_created_again_is_another_one(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    create_topic(moldau.bootstrap, "archive-again", 1)
    produce(moldau.bootstrap, "archive-again", [(0, i) for i in range(30)])
    archive(spark, moldau, lake, "archive-again")
    admin.delete_topics(["archive-again"])["archive-again"].result(20)
    create_topic(moldau.bootstrap, "archive-again", 1)
    produce(moldau.bootstrap, "archive-again", [(0, i) for i in range(20)])
    archive(spark, moldau, lake, "archive-again")
    offsets = rows_of(lake, RECORDS, ["offset"])["offset"].to_pylist()
    assert sorted(offsets) == sorted([*range(30), *range(20)])


def test_a_native_topic_has_records_and_no_batches(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    """Its offsets are times, millions apart: a limit in records must not apply to them."""
    create_topic(moldau.bootstrap, "archive-native", 1, moldau_storage="native")
    for first in (0, 50, 100):
        produce(moldau.bootstrap, "archive-native", [(0, i) for i in range(first, first + 50)])
    archive(spark, moldau, lake, "archive-native", max_records=100)
    rows = rows_of(lake, RECORDS).sort_by("offset").to_pylist()
    assert [row["key"] for row in rows] == [key_of(0, i) for i in range(150)]
    assert [row["value"] for row in rows] == [value_of(0, i) for i in range(150)]
    assert rows_of(lake, BATCHES).num_rows == 0
    assert lake.open(RECORDS).version() == 1


def test_records_trimmed_before_they_were_archived(
    spark: "SparkSession", moldau: Broker, lake: Lake
) -> None:
    create_topic(moldau.bootstrap, "archive-lost", 1)
    produce(moldau.bootstrap, "archive-lost", [(0, i) for i in range(50)])
    archive(spark, moldau, lake, "archive-lost")
    produce(moldau.bootstrap, "archive-lost", [(0, i) for i in range(50, 100)])
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    gone = TopicPartition("archive-lost", 0, 70)
    admin.delete_records([gone])[gone].result(20)
    with pytest.raises(DataLoss, match=r"offsets 50 to 69 .*--allow-data-loss"):
        archive(spark, moldau, lake, "archive-lost")
    archive(spark, moldau, lake, "archive-lost", allow_data_loss=True)
    offsets = rows_of(lake, RECORDS, ["offset"])["offset"].to_pylist()
    assert sorted(offsets) == [*range(50), *range(70, 100)]


def test_a_pattern_finds_new_topics(spark: "SparkSession", moldau: Broker, lake: Lake) -> None:
    create_topic(moldau.bootstrap, "archived.a", 1)
    produce(moldau.bootstrap, "archived.a", [(0, i) for i in range(5)])
    archive(spark, moldau, lake, pattern=r"archived\..*")
    create_topic(moldau.bootstrap, "archived.b", 1)
    produce(moldau.bootstrap, "archived.b", [(0, i) for i in range(6)])
    archive(spark, moldau, lake, pattern=r"archived\..*")
    check_records(lake, "archived.a", [5])
    check_records(lake, "archived.b", [6])
    # A topic that is no longer asked for is not lost.
    produce(moldau.bootstrap, "archived.b", [(0, 6)])
    archive(spark, moldau, lake, "archived.b")
    check_records(lake, "archived.b", [7])


def test_one_archiver_per_lake(lake: Lake) -> None:
    taken = f"already being done by process {os.getpid()} on .* a lake has one archiver"
    with archiver_lock(lake), pytest.raises(PipelineError, match=taken), archiver_lock(lake):
        pytest.fail("two archivers")
    with archiver_lock(lake):
        pass  # free again


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="give a directory in which this user may write"):
        Lake(tmp_path / "file" / "lake").create()
    with pytest.raises(ClientError, match="moldau pipeline archive"):
        Lake(tmp_path / "nothing").open(RECORDS)
