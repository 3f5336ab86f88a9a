"""Commits to a lake that meet each other, or fail when they are already part of the table."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.commits import COMMIT_ID
from moldau.ops.pipeline.lake.compact import Compactor
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS, TABLES
from moldau.ops.pipeline.lake.tables import Lake, application_of, held_offsets
from moldau.ops.pipeline.source.fetch import OffsetRange
from tests.support.brokers.running import Broker
from tests.support.pipeline.lake_rows import add_rows, row_of
from tests.support.pipeline.lakes import check_lake, rows_of
from tests.support.pipeline.spark import create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 400
REFUSED = "another program has committed to this table since it was read"


@pytest.mark.parametrize("meeting_at", TABLES)
def test_of_two_archivers_without_a_lock_one_commits(
    spark: "SparkSession",
    moldau: Broker,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    meeting_at: str,
) -> None:
    """One has read how far the tables are, and written its files; then another archives the same.

    At the second table: the first one has committed the other table before that. No stream of
    Spark is needed for it: a batch of a stream is a list of ranges.
    """
    topic = f"two-archivers-{meeting_at}"
    create_topic(moldau.bootstrap, topic, 1)
    produce(moldau.bootstrap, topic, [(0, i) for i in range(10)])
    settings = ArchiveSettings(moldau.bootstrap, (topic,))
    ranges = [OffsetRange(TopicPartition(topic, 0), 0, 10)]
    slow, quick = Archiver(spark, lake, settings), Archiver(spark, Lake(lake.path), settings)
    commit = Lake.commit

    def commit_second(self: Lake, table: str, *rest: Any) -> int:
        if table == meeting_at:
            monkeypatch.setattr(Lake, "commit", commit)
            quick._archive(ranges, 0)
            check_lake(lake, topic, [10])
        return commit(self, table, *rest)

    monkeypatch.setattr(Lake, "commit", commit_second)
    with pytest.raises(PipelineError, match=REFUSED) as refused:
        slow._archive(ranges, 0)
    assert "nothing was added; a lake has one archiver" in str(refused.value)
    check_lake(lake, topic, [10])

    # The one that was refused resumes where the other ended.
    produce(moldau.bootstrap, topic, [(0, i) for i in range(10, 15)])
    slow._archive([OffsetRange(TopicPartition(topic, 0), 0, 15)], 1)
    check_lake(lake, topic, [15])
    for archiver in (slow, quick):
        archiver._planner.close()


def test_of_many_commits_on_one_version_one_is_part_of_the_table(lake: Lake) -> None:
    """Whatever their order: they race for the file of the next version."""
    writers, rounds = 4, 10
    application = application_of(b"race".ljust(16, b"\0"), 0)
    partition = TopicPartition("race", 0)
    start = threading.Barrier(writers)

    refusals: list[str] = []

    def write(name: str) -> int:
        won = 0
        for _ in range(rounds):
            start.wait(PATIENCE_S)  # nobody reads before the last round has ended
            opened = lake.open(RECORDS)
            held = held_offsets(opened, {partition: application}).get(partition, 0)
            start.wait(PATIENCE_S)
            try:
                version = lake.commit(RECORDS, opened, [], {application: held + 1}, {"by": name})
            except PipelineError as refused:
                refusals.append(str(refused))
            else:
                won += 1
                assert version == held + 1  # the table was created as version 0
        return won

    with ThreadPoolExecutor(writers) as threads:
        wins = list(threads.map(write, "abcd"))
    assert sum(wins) == rounds
    assert all(REFUSED in refusal for refusal in refusals)
    table = lake.open(RECORDS)
    assert table.version() == rounds
    assert table.transaction_version(application) == rounds


def test_archivers_of_other_partitions_and_a_compaction_do_not_conflict(
    spark: "SparkSession", lake: Lake
) -> None:
    rows = [row_of(0, i) for i in range(10)]
    add_rows(lake, "orders", rows[:5])
    opened = {table: lake.open(table) for table in TABLES}
    add_rows(lake, "orders", rows[5:])
    Compactor(spark, lake).run()
    for table in TABLES:
        lake.commit(table, opened[table], [], {"moldau-archive/other/0": 7}, {})
        assert lake.open(table).transaction_version("moldau-archive/other/0") == 7
    check_lake(lake, "orders", [10])


# --- commits that raise ---


def test_a_checkpoint_that_cannot_be_written_does_not_undo_the_commit(
    spark: "SparkSession", moldau: Broker, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """delta-rs raises then, although the commit is part of the table."""
    create_topic(moldau.bootstrap, "no-checkpoint", 1)
    produce(moldau.bootstrap, "no-checkpoint", [(0, i) for i in range(10)])
    block_checkpoints(lake)
    settings = ArchiveSettings(moldau.bootstrap, ("no-checkpoint",), max_records=5)
    with caplog.at_level(logging.WARNING, "moldau.pipeline"):
        Archiver(spark, lake, settings).run(continuous=False)
    check_lake(lake, "no-checkpoint", [10])
    said = [one.getMessage() for one in caplog.records if "an error followed" in one.getMessage()]
    assert len(said) == 4  # two commits of each table
    assert "version 2 was committed" in said[0]


def test_a_compaction_whose_checkpoint_cannot_be_written_keeps_its_files(
    spark: "SparkSession", lake: Lake
) -> None:
    for first in (0, 10):
        add_rows(lake, "orders", [row_of(0, i) for i in range(first, first + 10)])
    block_checkpoints(lake)
    outcomes = Compactor(spark, lake).run()
    assert [(one.before, one.after) for one in outcomes] == [(2, 1), (2, 1)]
    check_lake(lake, "orders", [20])


def block_checkpoints(lake: Lake) -> None:
    """Make each later commit try to write a checkpoint, in whose place is a directory."""
    for table in TABLES:
        opened = lake.open(table)
        opened.alter.set_table_properties({"delta.checkpointInterval": "1"})
        for version in range(opened.version() + 1, opened.version() + 10):
            log = lake.table_path(table) / "_delta_log"
            (log / f"{version:020}.checkpoint.parquet" / "in-the-way").mkdir(parents=True)


FAULTS: list[Callable[[], Exception]] = [
    lambda: OSError(5, "Input/output error"),
    # A network file system that repeats the creation of a file finds that it exists.
    lambda: CommitFailedError("Concurrent transaction failed."),
]


def fail(monkeypatch: pytest.MonkeyPatch, fault: Exception, *, committed: bool) -> None:
    write = DeltaTable.create_write_transaction

    def write_and_fail(self: DeltaTable, *arguments: Any, **more: Any) -> None:
        if committed:
            write(self, *arguments, **more)
        raise fault

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_and_fail)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_raises_when_the_commit_is_there(
    spark: "SparkSession",
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[], Exception],
) -> None:
    fail(monkeypatch, fault(), committed=True)
    add_rows(lake, "orders", [row_of(0, i) for i in range(10)])
    add_rows(lake, "orders", [row_of(0, i) for i in range(10, 20)])
    check_lake(lake, "orders", [20])
    outcomes = Compactor(spark, lake).run()
    assert [(one.before, one.after) for one in outcomes] == [(2, 1), (2, 1)]
    check_lake(lake, "orders", [20])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_raises_without_the_commit(
    spark: "SparkSession",
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[], Exception],
) -> None:
    """Not even where another commit has taken the version meanwhile."""
    for first in (0, 10):
        add_rows(lake, "orders", [row_of(0, i) for i in range(first, first + 10)])
    opened = lake.open(RECORDS)
    lake.commit(RECORDS, lake.open(RECORDS), [], {"moldau-archive/other/0": 7}, {})
    fail(monkeypatch, fault(), committed=False)
    with pytest.raises(PipelineError, match="nothing was added"):
        lake.commit(RECORDS, opened, [], {"moldau-archive/another/0": 7}, {})
    with pytest.raises(PipelineError, match=r"keeps changing this table|nothing was changed"):
        Compactor(spark, lake).run()
    monkeypatch.undo()
    check_lake(lake, "orders", [20])
    for table in TABLES:
        assert not list(lake.table_path(table).rglob("sorted-*.parquet"))


def test_a_log_that_cannot_be_read_leaves_it_open_whether_the_commit_is_there(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction must not delete its new files then: the table may consist of them."""
    for first in (0, 10):
        add_rows(lake, "orders", [row_of(0, i) for i in range(first, first + 10)])
    fail(monkeypatch, OSError(5, "Input/output error"), committed=True)
    unreadable = lake.table_path(BATCHES) / "_delta_log" / f"{99:020}.json"
    unreadable.mkdir()
    with pytest.raises(PipelineError, match="not known whether the last commit was added"):
        Compactor(spark, lake).run()
    unreadable.rmdir()
    check_lake(lake, "orders", [20])


def test_every_commit_has_an_id_of_its_own(lake: Lake) -> None:
    add_rows(lake, "orders", [row_of(0, 0)])
    add_rows(lake, "orders", [row_of(0, 1)])
    found = [one[COMMIT_ID] for one in lake.open(RECORDS).history() if COMMIT_ID in one]
    assert len(found) == len(set(found)) == 2
    assert rows_of(lake, RECORDS).num_rows == 2
