"""`moldau pipeline compact` and `moldau pipeline sql`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from moldau.ops.command_line import Actions, discard_output
from moldau.ops.pipeline.common_options import add_lake_action, whole_number

COMPACT_EXAMPLES = """\
Merges the new files of each topic and day into files sorted by partition and offset. Readers see
either the old files or the new ones; old files are deleted after their retention. An archiver may
run at the same time.

examples:
  moldau pipeline compact --lake /data/lake
  moldau pipeline compact --lake /data/lake --retention-hours 24 --keep-versions 10
"""
SQL_EXAMPLES = """\
The tables:
  records   topic, date, partition, offset, timestamp, timestampType, key, value, headers
  batches   topic, date, partition, base_offset, last_offset, base_timestamp, max_timestamp, codec,
            record_count, control, aborted, data
Keys and values are bytes: printed as text if they are UTF-8, else in base64. Times are UTC.
A condition on topic and date skips whole directories.

examples:
  moldau pipeline sql --lake /data/lake "select topic, count(*) from records group by topic"
  moldau pipeline sql --lake /data/lake --format csv \\
      "select offset, cast(value as string) from records where topic = 'orders'" > orders.csv
  echo "select max(timestamp) from records" | moldau pipeline sql --lake /data/lake -
"""


def add_compact_action(actions: Actions) -> None:
    parser = add_lake_action(
        actions, "compact", "merge and sort the files of a lake", COMPACT_EXAMPLES, _compact
    )
    parser.add_argument(
        "--retention-hours", type=whole_number, default=168, metavar="H",
        help="how long old files are kept, for queries that still read them (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-versions", type=whole_number, default=1, metavar="N",
        help="keep the files of the last N versions of a table in any case (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--target-mb", type=whole_number, default=128, metavar="MB",
        help="size of the files to write, before compression (%(default)s)",
    )  # fmt: skip


def _compact(arguments: argparse.Namespace) -> int:
    from moldau.ops.pipeline.lake.compact import Compactor
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.progress import Meter
    from moldau.ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()  # before Spark, which is slow to start
    with (
        Meter("compact") as meter,
        spark_session("moldau-compact", arguments.master, plans_only=True) as spark,
    ):
        outcomes = Compactor(
            spark,
            lake,
            target_bytes=max(arguments.target_mb, 1) << 20,
            retention_hours=arguments.retention_hours,
            keep_versions=max(arguments.keep_versions, 1),
            meter=meter,
        ).run()
    for outcome in outcomes:
        print(
            f"{outcome.table}: {outcome.before:,} files with {outcome.rows:,} rows became "
            f"{outcome.after:,}; {outcome.deleted:,} old files deleted"
        )
    return 0


def add_sql_action(actions: Actions) -> None:
    parser = add_lake_action(actions, "sql", "query the tables of a lake", SQL_EXAMPLES, _sql)
    parser.add_argument("query", metavar="QUERY", help="Spark SQL; - reads it from standard input")
    parser.add_argument(
        "--format", choices=("table", "json", "csv"), default="table",
        help="a table, JSON lines, or comma-separated values (%(default)s)",
    )  # fmt: skip


def _sql(arguments: argparse.Namespace) -> int:
    from moldau.ops.pipeline.lake.query import run_query
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()
    # Spark gives timestamps to Python in the local time zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    with spark_session("moldau-sql", arguments.master) as spark:
        try:
            rows = run_query(spark, lake, query.rstrip().rstrip(";"), arguments.format, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            return 0
    if arguments.format == "table" and sys.stdout.isatty():
        print(f"({rows:,} rows)", file=sys.stderr)
    return 0
