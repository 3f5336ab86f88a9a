"""`moldau pipeline archive`."""

from __future__ import annotations

import argparse
import signal

from moldau.ops.command_line import Actions, add_bootstrap, bootstrap_of, client_settings
from moldau.ops.pipeline.common_options import add_lake_action

EXAMPLES = """\
The lake gets two Delta tables: `batches`, a row per record batch with its bytes as they are, and
`records`, a row per record, both partitioned by topic and date. Every record is archived exactly
once, whatever is killed and when; run it again and it resumes where the lake ends.

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
    parser = add_lake_action(
        actions, "archive", "archive topics to Delta tables, exactly once", EXAMPLES, _archive
    )
    add_bootstrap(parser)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topic", action="append", metavar="NAME", help="a topic; repeatable")
    chosen.add_argument("--pattern", metavar="REGEX", help="all topics whose whole name matches")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--once", action="store_true", help="archive what exists now (default)")
    pace.add_argument("--continuous", action="store_true", help="run until stopped")
    parser.add_argument(
        "--interval", type=float, default=10.0, metavar="S",
        help="with --continuous: seconds between commits (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-records", type=int, default=1_000_000, metavar="N",
        help="largest number of records in one commit (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue if records were trimmed before they could be archived",
    )


def _archive(arguments: argparse.Namespace) -> int:
    from moldau.ops.pipeline.archive.archiver import Archiver, ArchiveSettings, archiver_lock
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.progress import Meter
    from moldau.ops.pipeline.session import check_java, spark_session
    from moldau.ops.pipeline.source.fetch import connect
    from moldau.ops.pipeline.source.options import read_options

    client = client_settings(arguments)
    settings = ArchiveSettings(
        bootstrap_of(arguments, client),
        tuple(arguments.topic or ()),
        arguments.pattern,
        arguments.max_records,
        arguments.interval,
        arguments.allow_data_loss,
        client.properties,
    )
    # Quick checks come before Spark, which is slow to start.
    options = read_options(settings.options())
    check_java()
    connect(options.fetch).__exit__()
    lake = Lake(arguments.lake)
    lake.create()
    with archiver_lock(lake), Meter("archive") as meter:
        meter.say(f"starting Spark; the lake is {lake.path}")
        with spark_session("moldau-archive", arguments.master, plans_only=True) as spark:
            archiver = Archiver(spark, lake, settings, meter)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: archiver.stop())
            archiver.run(continuous=arguments.continuous)
        summary = meter.summary()
    print(f"archived {summary}")
    return 0
