"""`moldau pipeline archive`: its options, and what it tells in the end."""

from __future__ import annotations

import argparse
import signal

from ops.command_line import Actions, add_bootstrap, bootstrap_of
from ops.pipeline.common_options import add_lake_action, add_master

ARCHIVE_EXAMPLES = """\
The lake gets two Delta tables: `batches`, a row per record batch with its bytes as they are, and
`records`, a row per record, both partitioned by topic and date. Every record is archived exactly
once, whatever is killed when; run it again and it goes on where the lake ends.

A topic with remote.storage.enable=true is trimmed from the broker by local.retention.ms and
local.retention.bytes, but never beyond what is in the lake (the broker has to allow it, with
"remote.log.storage.system.enable" = true under [broker] in its file):
  moldau topics alter orders --config remote.storage.enable=true --config local.retention.ms=3600000

examples:
  moldau pipeline archive --lake /data/lake --topic orders --topic payments
  moldau pipeline archive --lake /data/lake --pattern '.*' --continuous --interval 30
  moldau pipeline archive --lake /shared/lake --topic orders --master spark://head:7077
"""


def add_archive_action(actions: Actions) -> None:
    made = add_lake_action(
        actions, "archive", "topics to Delta tables, exactly once", ARCHIVE_EXAMPLES, _archive
    )
    made.description = "Archive topics to Delta tables, exactly once."
    add_bootstrap(made)
    chosen = made.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topic", action="append", metavar="NAME", help="a topic; repeatable")
    chosen.add_argument("--pattern", metavar="REGEX", help="all topics whose whole name matches")
    pace = made.add_mutually_exclusive_group()
    pace.add_argument("--once", action="store_true", help="what is there now, then end (default)")
    pace.add_argument("--continuous", action="store_true", help="go on until stopped")
    made.add_argument(
        "--interval", type=float, default=10.0, metavar="S",
        help="with --continuous: seconds between commits (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--max-records", type=int, default=1_000_000, metavar="N",
        help="at most so many records in one commit (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="go on when records were trimmed before they could be archived",
    )
    add_master(made)


def _archive(arguments: argparse.Namespace) -> int:
    from ops.pipeline.archive.archiver import Archiver, Settings
    from ops.pipeline.lake.tables import Lake, Lock
    from ops.pipeline.progress import Meter
    from ops.pipeline.session import check_java, spark_session
    from ops.pipeline.source.fetch import connect
    from ops.pipeline.source.options import read_options

    settings = Settings(
        bootstrap_of(arguments),
        tuple(arguments.topic or ()),
        arguments.pattern,
        arguments.max_records,
        arguments.interval,
        arguments.allow_data_loss,
    )
    # What is quick to find out comes before Spark, which takes its time to start.
    options = read_options(settings.options())
    check_java()
    connect(options.fetch).__exit__()
    lake = Lake(arguments.lake)
    lake.create()
    with Lock(lake), Meter("archive") as meter:
        meter.say(f"starting Spark; the lake is {lake.path}")
        with spark_session("moldau-archive", arguments.master, plans_only=True) as spark:
            archiver = Archiver(spark, lake, settings, meter)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: archiver.stop())
            archiver.run(continuous=arguments.continuous)
        told = meter.told()
    print(f"archived {told}")
    return 0
