"""SQL over a lake: its tables as Spark views, and results as a table, JSON lines or CSV.

The files are the active ones according to delta-rs: no jar is needed, and files that are being
written or were replaced are not seen. A query reads the files it started with to its end.

Rows are written as they come, however many there are. Bytes are printed as text if they are UTF-8,
else in base64 after `base64:`; `cast(value as string)` and `hex(key)` choose in the query itself.
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

from moldau.ops.command_line import printable
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.schemas import SPARK_SCHEMAS, TABLES
from moldau.ops.pipeline.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("table", "json", "csv")
# Columns of a printed table are as wide as the widest of the first rows.
_MEASURED_ROWS = 1000
_MAX_WIDTH = 80
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


def run_query(spark: SparkSession, lake: Lake, text: str, output: str, out: IO[str]) -> int:
    """Write the result of a query; returns the number of rows. Raises PipelineError."""
    from pyspark.errors import PySparkException

    register_views(spark, lake)
    try:
        frame = spark.sql(text)
        rows = _Counted(frame.toLocalIterator(prefetchPartitions=True))
        WRITERS[output](frame.columns, rows, out)
    except PySparkException as error:
        raise _refused(error) from error
    return rows.count


class _Counted:
    """An iterator that counts."""

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
    """Spark's messages are long; the first line is enough."""
    reason = _ERROR_CLASS.sub("", next(iter(str(error).strip().splitlines()), "").strip())
    tables = "; ".join(
        f"{table}({', '.join(part.split()[0] for part in _columns(table))})" for table in TABLES
    )
    return PipelineError(f"Spark refuses the query: {reason.rstrip('.')}. The tables are {tables}")


def _columns(table: str) -> list[str]:
    return re.split(r", (?![^<]*>)", SPARK_SCHEMAS[table])


# --- values ---


def plain(value: Any) -> Any:
    """The value as JSON can express it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return text_or_base64(bytes(value))
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


def text_or_base64(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _cell(value: Any) -> str:
    printed = plain(value)
    if printed is None:
        return ""
    if isinstance(printed, dict | list):
        return json.dumps(printed, ensure_ascii=False)
    return str(printed)


# --- formats ---


def _write_json(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    for row in rows:
        document = {name: plain(value) for name, value in zip(columns, row, strict=True)}
        out.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_csv(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)


def _write_table(columns: Sequence[str], rows: Iterable[Any], out: IO[str]) -> None:
    """Widths are those of the first rows; a wider one later only breaks its own line."""
    lines = ([printable(_cell(value)) for value in row] for row in rows)
    first = list(islice(lines, _MEASURED_ROWS))
    widths = [min(max(map(len, cells)), _MAX_WIDTH) for cells in zip(columns, *first, strict=True)]
    for line in chain([list(columns), ["-" * width for width in widths]], first, lines):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.write("  ".join(padded).rstrip() + "\n")


WRITERS: dict[str, Callable[[Sequence[str], Iterable[Any], IO[str]], None]] = {
    "table": _write_table,
    "json": _write_json,
    "csv": _write_csv,
}
