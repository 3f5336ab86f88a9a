"""Compaction: few sorted files, no row lost or doubled, with readers and writers at work."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.compact import Compactor
from moldau.ops.pipeline.lake.compact_task import RewriteTask
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, TABLES
from moldau.ops.pipeline.lake.tables import Lake, application_of, hold_lock
from tests.support.pipeline.lake_rows import add_rows, row_of
from tests.support.pipeline.lakes import check_lake, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add(lake: Lake, partitions: int, first: int, end: int, topic: str = "orders") -> None:
    add_rows(lake, topic, [row_of(p, i) for p in range(partitions) for i in range(first, end)])


def files_of(lake: Lake, table: str) -> list[str]:
    return sorted(lake.open(table).file_uris())


def keys_of(path: str) -> list[Any]:
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(path).read(columns=["partition", "offset"]).to_pylist()
    return [(row["partition"], row["offset"]) for row in rows]


def test_small_files_become_one_sorted_file(spark: "SparkSession", lake: Lake) -> None:
    for first in (0, 20, 40):
        add(lake, 3, first, first + 20)
    outcomes = Compactor(spark, lake).run()
    assert [(one.before, one.after) for one in outcomes] == [(3, 1), (3, 1)]
    (path,) = files_of(lake, RECORDS)
    assert keys_of(path) == [(p, i) for p in range(3) for i in range(60)]
    check_lake(lake, "orders", [60] * 3)
    # The versions from which the archiver resumes are unchanged.
    application = application_of(b"orders".ljust(16, b"\0"), 2)
    assert lake.open(RECORDS).transaction_version(application) == 60


def test_files_are_no_larger_than_wanted_and_do_not_overlap(
    spark: "SparkSession", lake: Lake
) -> None:
    for first in (0, 50):
        add(lake, 4, first, first + 50)
    Compactor(spark, lake, target_bytes=8_000).run()
    ranges = sorted((keys[0], keys[-1]) for keys in map(keys_of, files_of(lake, RECORDS)))
    assert len(ranges) > 3
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    check_lake(lake, "orders", [100] * 4)


def test_there_is_nothing_to_do_twice(spark: "SparkSession", lake: Lake) -> None:
    add(lake, 1, 0, 10)
    add(lake, 1, 10, 20)
    Compactor(spark, lake).run()
    versions = [lake.open(table).version() for table in TABLES]
    assert [one.before for one in Compactor(spark, lake).run()] == [0, 0]
    assert [lake.open(table).version() for table in TABLES] == versions


def test_an_archiver_that_commits_at_the_same_time_loses_nothing(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 2, 0, 10)
    add(lake, 2, 10, 20)
    rewrite = Compactor._commit
    later = iter([(20, 25), (25, 30)])

    def commit_after_others(self: Compactor, *rest: Any) -> None:
        add(lake, 2, *next(later))
        rewrite(self, *rest)

    monkeypatch.setattr(Compactor, "_commit", commit_after_others)
    Compactor(spark, lake).run()
    monkeypatch.undo()
    check_lake(lake, "orders", [30] * 2)
    Compactor(spark, lake).run()
    assert len(files_of(lake, RECORDS)) == 1
    check_lake(lake, "orders", [30] * 2)


def test_of_two_compactions_at_once_one_is_retried(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock keeps them apart on one machine; on a shared disk the commit has to."""
    add(lake, 2, 0, 10)
    add(lake, 2, 10, 20)
    rewrite = Compactor._commit

    def commit_second(self: Compactor, *rest: Any) -> None:
        monkeypatch.setattr(Compactor, "_commit", rewrite)
        for table in TABLES:
            Compactor(spark, lake)._table(table)
        rewrite(self, *rest)

    monkeypatch.setattr(Compactor, "_commit", commit_second)
    outcomes = Compactor(spark, lake).run()
    assert [one.before for one in outcomes] == [0, 0]  # the other one did it
    check_lake(lake, "orders", [20] * 2)
    # Nor does it leave its files behind.
    assert len(list((lake.path / RECORDS).rglob("sorted-*.parquet"))) == 1


def test_files_of_an_old_version_are_kept_for_their_retention(
    spark: "SparkSession", lake: Lake
) -> None:
    add(lake, 1, 0, 10)
    add(lake, 1, 10, 20)
    reading = DeltaTable(lake.table_path(RECORDS))
    Compactor(spark, lake).run()
    assert reading.to_pyarrow_table().num_rows == 20
    add(lake, 1, 20, 30)
    outcomes = Compactor(spark, lake, retention_hours=0).run()
    assert all(one.deleted for one in outcomes)
    with pytest.raises(FileNotFoundError):
        reading.to_pyarrow_table()
    check_lake(lake, "orders", [30])
    left = {str(path) for path in (lake.path / RECORDS).rglob("*.parquet")}
    assert {path for path in left if "_delta_log" not in path} == {
        path.removeprefix("file://") for path in files_of(lake, RECORDS)
    }


def test_versions_that_are_kept_stay_readable(spark: "SparkSession", lake: Lake) -> None:
    add(lake, 1, 0, 10)
    add(lake, 1, 10, 20)
    version = lake.open(RECORDS).version()
    Compactor(spark, lake, retention_hours=0, keep_versions=2).run()
    old = DeltaTable(lake.table_path(RECORDS), version=version)
    assert old.to_pyarrow_table().num_rows == 20


def test_files_that_are_not_committed_yet_are_kept(spark: "SparkSession", lake: Lake) -> None:
    add(lake, 1, 0, 10)
    under_way = lake.path / RECORDS / "topic=orders" / "being-written.parquet"
    under_way.write_bytes(b"not committed yet")
    Compactor(spark, lake, retention_hours=0).run()
    assert under_way.exists()


def test_days_and_topics_stay_apart(spark: "SparkSession", lake: Lake) -> None:
    day = 86_400_000
    for first in (0, 10):
        for topic in ("a", "b"):
            add_rows(
                lake,
                topic,
                [
                    row_of(0, i)._replace(timestamp_ms=1_750_000_000_000 + (i % 2) * day)
                    for i in range(first, first + 10)
                ],
            )
    Compactor(spark, lake).run()
    assert len(files_of(lake, RECORDS)) == 4
    assert rows_of(lake, RECORDS).num_rows == 40
    assert len(lake.open(BATCHES).partitions()) == 4


def test_its_errors(spark: "SparkSession", lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no table batches.*moldau pipeline archive"):
        Compactor(spark, Lake(tmp_path / "none")).run()
    with (
        hold_lock(lake.state_path / "compact.lock", "it"),
        pytest.raises(PipelineError, match=r"done by process \d+ .*wait for it, or stop it"),
    ):
        Compactor(spark, lake).run()


def test_rows_that_are_missing_stop_it(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 1, 0, 10)
    tasks = Compactor._tasks

    def too_few(self: Compactor, groups: Any) -> list[RewriteTask]:
        return [task._replace(high=(0, 5)) for task in tasks(self, groups)]

    monkeypatch.setattr(Compactor, "_tasks", too_few)
    add(lake, 1, 10, 20)
    with pytest.raises(PipelineError, match=r"rows were to be merged and .* nothing was changed"):
        Compactor(spark, lake).run()
    monkeypatch.undo()
    check_lake(lake, "orders", [20])
