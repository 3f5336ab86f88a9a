"""`moldau pipeline report`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from moldau.ops.client import ClientError
from moldau.ops.command_line import Actions
from moldau.ops.pipeline.common_options import add_lake_action

EXAMPLES = """\
For each topic: volume over time, record sizes, frequent keys, partitions and gaps. If the topic
__moldau_group_events is in the lake as well, for each consumer group: rebalances, pauses, lag and
commits. The page is one file that loads nothing from elsewhere.

examples:
  moldau pipeline archive --lake /data/lake --topic orders --topic __moldau_group_events
  moldau pipeline report --lake /data/lake --html report.html
"""


def add_report_action(actions: Actions) -> None:
    parser = add_lake_action(
        actions, "report", "write an HTML page about a lake's contents", EXAMPLES, _report
    )
    parser.add_argument("--html", required=True, metavar="FILE", help="the file to write")


def _report(arguments: argparse.Namespace) -> int:
    from pyspark.errors import PySparkException

    from moldau.ops.pipeline.errors import from_spark
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.progress import Meter
    from moldau.ops.pipeline.report.data import compute
    from moldau.ops.pipeline.report.page import render
    from moldau.ops.pipeline.session import spark_session

    lake = Lake(arguments.lake)
    lake.check()
    file = Path(arguments.html)
    try:
        with file.open("a"):  # before the work, which takes a while
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
            raise from_spark(error) from error
    new = file.with_name(file.name + ".new")
    new.write_text(render(report, time.time()), encoding="utf-8")
    new.replace(file)
    print(f"{file}: {len(report.topics):,} topics, {len(report.groups):,} groups")
    return 0
