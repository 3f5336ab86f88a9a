"""`moldau pipeline compact|sql|replay|report`: their options, and what they tell in the end."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from pathlib import Path

from ops.client import ClientError, parse_address
from ops.command_line import Actions, add_bootstrap, bootstrap_of, discard_output
from ops.pipeline.common_options import add_lake_action, add_master

COMPACT_EXAMPLES = """\
The new files of each topic and day become files sorted by partition and offset. Readers see the old
files or the new ones, never a gap; old files are deleted when they are past their retention. An
archiver may run meanwhile.

examples:
  moldau pipeline compact --lake /data/lake
  moldau pipeline compact --lake /data/lake --retention-hours 24 --keep-versions 10
"""
SQL_EXAMPLES = """\
The tables:
  records   topic, date, partition, offset, timestamp, timestampType, key, value, headers
  batches   topic, date, partition, base_offset, last_offset, base_timestamp, max_timestamp, codec,
            record_count, control, aborted, data
Keys and values are bytes: shown as text where they are UTF-8, else in base64. Times are UTC.
A condition on topic and date leaves out whole directories.

examples:
  moldau pipeline sql --lake /data/lake "select topic, count(*) from records group by topic"
  moldau pipeline sql --lake /data/lake --format csv \\
      "select offset, cast(value as string) from records where topic = 'orders'" > orders.csv
  echo "select max(timestamp) from records" | moldau pipeline sql --lake /data/lake -
"""
REPLAY_EXAMPLES = """\
Keys, values, headers and timestamps are kept. If it is killed, run the same command again: it goes
on where it was, and no record is lost or there twice. What it is about is settled when it begins;
once it is done the same command does nothing, until it is told --again.

examples:
  moldau pipeline replay --lake /data/lake --topic orders --to orders-restored
  moldau pipeline replay --lake /data/lake --topic orders --to audit --from-time 2026-01-31T12:00:00Z
  moldau pipeline replay --lake /data/lake --topic orders --to wider --partitions hash
"""  # noqa: E501
REPORT_EXAMPLES = """\
Volume over time, record sizes, frequent keys, partitions and gaps of each topic; and, if the topic
__moldau_group_events is in the lake too, rebalances, pauses, lag and commits of consumer groups.
The page needs nothing else: send it to whom you like.

examples:
  moldau pipeline archive --lake /data/lake --topic orders --topic __moldau_group_events
  moldau pipeline report --lake /data/lake --html report.html
"""


def add_lake_actions(actions: Actions) -> None:
    _add_compact(actions)
    _add_sql(actions)
    _add_replay(actions)
    _add_report(actions)


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


_whole.__name__ = "number from 0 on"


# --- compact ---


def _add_compact(actions: Actions) -> None:
    made = add_lake_action(
        actions, "compact", "merge and sort the files of a lake", COMPACT_EXAMPLES, _compact
    )
    made.add_argument(
        "--retention-hours", type=_whole, default=168, metavar="H",
        help="old files are kept so long, for queries that still read them (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--keep-versions", type=_whole, default=1, metavar="N",
        help="and as long as the last N versions of a table need them (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--target-mb", type=_whole, default=128, metavar="MB",
        help="how large files are to be, before compression (%(default)s)",
    )  # fmt: skip
    add_master(made)


def _compact(arguments: argparse.Namespace) -> int:
    from ops.pipeline.lake.compact import Compactor
    from ops.pipeline.lake.tables import Lake
    from ops.pipeline.progress import Meter
    from ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()  # before Spark, which takes its time to start
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
    for one in outcomes:
        print(
            f"{one.table}: {one.before:,} files with {one.rows:,} rows became {one.after:,}; "
            f"{one.deleted:,} old files deleted"
        )
    return 0


# --- sql ---


def _add_sql(actions: Actions) -> None:
    made = add_lake_action(actions, "sql", "ask the tables of a lake", SQL_EXAMPLES, _sql)
    made.add_argument(
        "query", metavar="QUERY", help="in Spark's SQL; - reads it from standard input"
    )
    made.add_argument(
        "--format", choices=("table", "json", "csv"), default="table", dest="form",
        help="a table for people, an object a line, or comma-separated values (%(default)s)",
    )  # fmt: skip
    add_master(made)


def _sql(arguments: argparse.Namespace) -> int:
    # Timestamps come to Python in the time of the place it runs at.
    os.environ["TZ"] = "UTC"
    time.tzset()
    from ops.pipeline.lake.query import run_query
    from ops.pipeline.lake.tables import Lake
    from ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    with spark_session("moldau-sql", arguments.master) as spark:
        try:
            rows = run_query(spark, lake, query.rstrip().rstrip(";"), arguments.form, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            return 0
    if arguments.form == "table" and sys.stdout.isatty():
        print(f"({rows:,} rows)", file=sys.stderr)
    return 0


# --- replay ---


def _moment(text: str) -> int:
    """A moment as milliseconds since 1970; without a zone it is UTC's."""
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


_moment.__name__ = "time, such as 2026-01-31T12:00:00Z or milliseconds since 1970"


def _add_replay(actions: Actions) -> None:
    made = add_lake_action(
        actions, "replay", "records of a lake into a topic", REPLAY_EXAMPLES, _replay
    )
    add_bootstrap(made)
    made.add_argument("--topic", required=True, metavar="NAME", help="the topic in the lake")
    made.add_argument("--to", required=True, metavar="NAME", help="the topic they go to")
    since = made.add_mutually_exclusive_group()
    since.add_argument(
        "--from-offset", type=_whole, metavar="N", help="of each partition, from this offset on"
    )
    since.add_argument(
        "--from-time", type=_moment, metavar="TIME", help="records of this time or later"
    )
    made.add_argument(
        "--partitions", choices=("keep", "hash"), default="keep",
        help="into the partition they were in, or by their keys (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="lz4",
        help="of the batches that are sent (%(default)s)",
    )  # fmt: skip
    made.add_argument("--again", action="store_true", help="begin anew, also if it is done")
    add_master(made)


def _replay(arguments: argparse.Namespace) -> int:
    from ops.pipeline.lake.tables import RECORDS, Lake
    from ops.pipeline.progress import Meter
    from ops.pipeline.replay.replayer import Replay, Wanted
    from ops.pipeline.session import spark_session
    from ops.pipeline.source.fetch import FetchSettings, connect

    try:
        addresses = tuple(parse_address(one) for one in bootstrap_of(arguments).split(","))
    except ValueError as error:
        raise ClientError(str(error)) from None
    settings = FetchSettings(addresses, client_id="moldau-replay")
    lake = Lake(arguments.lake)
    lake.open(RECORDS)
    connect(settings).__exit__()
    wanted = Wanted(
        arguments.topic,
        arguments.to,
        arguments.partitions,
        arguments.from_offset,
        arguments.from_time,
        arguments.compression,
        arguments.again,
    )
    with (
        Meter("replay") as meter,
        spark_session("moldau-replay", arguments.master, plans_only=True) as spark,
    ):
        outcome = Replay(spark, lake, settings, wanted, meter).run()
    if outcome.done_before is not None:
        print(f"was done already, at {outcome.done_before}; --again begins anew")
    else:
        before = outcome.rows - outcome.sent
        print(
            f"{arguments.topic} to {arguments.to}: {outcome.sent:,} records sent"
            + (f", {before:,} were there already" if before else "")
        )
    return 0


# --- report ---


def _add_report(actions: Actions) -> None:
    made = add_lake_action(
        actions, "report", "a page about what is in a lake", REPORT_EXAMPLES, _report
    )
    made.add_argument("--html", required=True, metavar="FILE", help="where the page goes")
    add_master(made)


def _report(arguments: argparse.Namespace) -> int:
    from pyspark.errors import PySparkException

    from ops.pipeline.faults import explained
    from ops.pipeline.lake.tables import Lake
    from ops.pipeline.progress import Meter
    from ops.pipeline.report.data import compute
    from ops.pipeline.report.page import render
    from ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()
    file = Path(arguments.html)
    try:
        with file.open("a"):  # before the work, which takes its time
            pass
    except OSError as error:
        raise ClientError(
            f"{file} cannot be written: {error.strerror}; give --html a file in a directory that "
            "exists and that this user may write"
        ) from None
    with Meter("report") as meter, spark_session("moldau-report", arguments.master) as spark:
        meter.say("reading the lake")
        try:
            report = compute(spark, lake)
        except PySparkException as error:
            raise explained(error) from error
    new = file.with_name(file.name + ".new")
    new.write_text(render(report, time.time()), encoding="utf-8")
    new.replace(file)
    print(f"{file}: {len(report.topics):,} topics, {len(report.groups):,} groups")
    return 0
