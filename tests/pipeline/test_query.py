"""SQL on a lake: queries, and their results in each format."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.compact import Compactor
from moldau.ops.pipeline.lake.query import run_query
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.pipeline.lake_rows import Row, add_rows, make_lake, row_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = make_lake(tmp_path_factory.mktemp("lakes") / "a lake")
    for first in (0, 50):
        rows = [row_of(p, i) for p in range(2) for i in range(first, first + 50)]
        add_rows(made, "orders", rows)
    odd = Row(0, 0, b"k\xff", 'žluť\n,"x"'.encode(), 1_750_000_000_123, [("h", b"\x00\xfe")])
    add_rows(made, "007", [odd, odd._replace(offset=1, key=None, value=None, headers=[])])
    return made


def ask(spark: "SparkSession", lake: Lake, text: str, form: str = "json") -> str:
    out = io.StringIO()
    run_query(spark, lake, text, form, out)
    return out.getvalue()


def rows(spark: "SparkSession", lake: Lake, text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(spark, lake, text).splitlines()]


def test_counts_by_topic_and_partition(spark: "SparkSession", lake: Lake) -> None:
    query = (
        "select topic, partition, count(*) as n, max(offset) as last from records "
        "group by topic, partition order by topic, partition"
    )
    assert rows(spark, lake, query) == [
        {"topic": "007", "partition": 0, "n": 2, "last": 1},
        {"topic": "orders", "partition": 0, "n": 100, "last": 99},
        {"topic": "orders", "partition": 1, "n": 100, "last": 99},
    ]


def test_a_topic_whose_name_is_a_number_and_bytes_that_are_no_text(
    spark: "SparkSession", lake: Lake
) -> None:
    found = rows(spark, lake, "select * from records where topic = '007' order by offset")
    assert found == [
        {
            "topic": "007", "date": "2025-06-15", "partition": 0, "offset": 0,
            "timestamp": "2025-06-15T15:06:40.123", "timestampType": 0, "key": "base64:a/8=",
            "value": 'žluť\n,"x"', "headers": [{"key": "h", "value": "base64:AP4="}],
        },
        {
            "topic": "007", "date": "2025-06-15", "partition": 0, "offset": 1,
            "timestamp": "2025-06-15T15:06:40.123", "timestampType": 0, "key": None,
            "value": None, "headers": None,
        },
    ]  # fmt: skip


def test_batches_join_records(spark: "SparkSession", lake: Lake) -> None:
    query = (
        "select count(*) as n, sum(length(b.data)) > 0 as has_bytes from records r join batches b "
        "on r.topic = b.topic and r.partition = b.partition "
        "and r.offset between b.base_offset and b.last_offset where r.topic = 'orders'"
    )
    assert rows(spark, lake, query) == [{"n": 200, "has_bytes": True}]


def test_csv_can_be_read_back(spark: "SparkSession", lake: Lake) -> None:
    printed = ask(spark, lake, "select key, value from records where topic = '007'", "csv")
    read = list(csv.reader(io.StringIO(printed, newline="")))
    assert read == [["key", "value"], ["base64:a/8=", 'žluť\n,"x"'], ["", ""]]


def test_a_table_for_people(spark: "SparkSession", lake: Lake) -> None:
    printed = ask(
        spark, lake,
        "select offset, value from records where topic = '007' order by offset", "table",
    )  # fmt: skip
    assert printed.splitlines() == [
        "offset  value",
        "------  ----------",
        '0       žluť\\n,"x"',
        "1",
    ]


def test_what_compaction_replaced_is_not_seen(spark: "SparkSession", tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    add_rows(lake, "t", [row_of(0, i) for i in range(10)])
    add_rows(lake, "t", [row_of(0, i) for i in range(10, 20)])
    Compactor(spark, lake).run()  # the old files are still there, for their retention
    query = "select count(*) as n, count(distinct offset) as d from records"
    assert rows(spark, lake, query) == [{"n": 20, "d": 20}]


def test_an_empty_lake_has_empty_tables(spark: "SparkSession", tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    assert rows(spark, lake, "select count(*) as n from records") == [{"n": 0}]
    assert ask(spark, lake, "select topic, offset from records", "csv") == "topic,offset\n"


@pytest.mark.parametrize("query", ["select nothing from records", "selekt 1", "select * from x"])
def test_a_wrong_query_is_refused_in_words(spark: "SparkSession", lake: Lake, query: str) -> None:
    with pytest.raises(
        PipelineError, match=r"refuses the query: .*records\(topic, date, .*headers"
    ):
        ask(spark, lake, query)
