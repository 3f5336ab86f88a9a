"""SQL over a lake: its tables as Spark views, and results as a table, JSON lines or CSV.

The files are those that delta-rs says are active, so no jar is needed and nothing that is being
written or was replaced is seen. A query goes on with the files it began with.

Rows are written as they come, however many there are. Bytes are shown as text where they are
UTF-8, and in base64 after `base64:` elsewhere; `cast(value as string)` and `hex(key)` say what is
wanted in the query itself.
"""

from __future__ import annotations

import base64
import csv
import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from ops.command_line import printable
from ops.pipeline.errors import PipelineError
from ops.pipeline.lake.tables import TABLES, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("table", "json", "csv")
SPARK_SCHEMAS = {
    "batches": (
        "topic string, date date, partition int, base_offset bigint, last_offset bigint, "
        "base_timestamp timestamp, max_timestamp timestamp, codec string, record_count int, "
        "control boolean, aborted boolean, data binary"
    ),
    "records": (
        "topic string, date date, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    ),
}
# Columns of a table on paper are as wide as the widest of so many rows.
_MEASURED_ROWS = 1000
_WIDEST = 80
_ERROR_CLASS = re.compile(r"^\[[A-Z_.]+\] ")


def table_frame(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """A table of the lake as it is now."""
    files = [unquote(urlparse(one).path) for one in lake.open(table).file_uris()]
    schema = SPARK_SCHEMAS[table]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(lake.table_path(table)))
    return reader.parquet(*files)


def register_views(spark: SparkSession, lake: Lake) -> None:
    for table in TABLES:
        table_frame(spark, lake, table).createOrReplaceTempView(table)


def run_query(spark: SparkSession, lake: Lake, text: str, form: str, out: IO[str]) -> int:
    """Writes what the query gives, and gives the number of rows. Raises PipelineError."""
    from pyspark.errors import PySparkException

    register_views(spark, lake)
    try:
        frame = spark.sql(text)
        rows = _counted(frame.toLocalIterator(prefetchPartitions=True))
        WRITERS[form](frame.columns, rows, out)
    except PySparkException as error:
        raise _refused(error) from error
    return rows.count


class _counted:
    """An iterator that knows how many there were."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = iter(rows)
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = next(self._rows)
        self.count += 1
        return row


def _refused(error: Exception) -> PipelineError:
    """Spark's messages are long; the first line says it."""
    told = _ERROR_CLASS.sub("", next(iter(str(error).strip().splitlines()), "").strip())
    tables = "; ".join(
        f"{table}({', '.join(part.split()[0] for part in _columns(table))})" for table in TABLES
    )
    return PipelineError(f"Spark refuses the query: {told.rstrip('.')}. The tables are {tables}")


def _columns(table: str) -> list[str]:
    return re.split(r", (?![^<]*>)", SPARK_SCHEMAS[table])


# --- values ---


def plain(value: Any) -> Any:
    """What JSON can say."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return text_of(bytes(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(name)): plain(one) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [plain(one) for one in value]
    return str(value)


def text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _cell(value: Any) -> str:
    told = plain(value)
    if told is None:
        return ""
    if isinstance(told, dict | list):
        return json.dumps(told, ensure_ascii=False)
    return str(told)


# --- forms ---


def _write_json(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    for row in rows:
        document = {name: plain(value) for name, value in zip(columns, row, strict=True)}
        out.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_csv(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)


def _write_table(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    """Widths by the first rows; later ones that are wider only push their line out of shape."""
    lines = ([printable(_cell(value)) for value in row] for row in rows)
    first = list(islice(lines, _MEASURED_ROWS))
    widths = [min(max(map(len, cells)), _WIDEST) for cells in zip(columns, *first, strict=True)]
    for line in chain([list(columns), ["-" * width for width in widths]], first, lines):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.write("  ".join(padded).rstrip() + "\n")


WRITERS: dict[str, Callable[[Sequence[str], Iterable[Any], IO[str]], None]] = {
    "table": _write_table,
    "json": _write_json,
    "csv": _write_csv,
}
