"""`moldau pipeline`: what is done with topics on Spark. Actions live in modules of their own."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys

from ops.client import ClientError
from ops.command_line import BOOTSTRAP_ENV, DEFAULT_BOOTSTRAP, EXIT_CODES, complain

NEEDED = ("pyspark", "deltalake", "pyarrow", "numpy")
INSTALL = "pip install 'moldau[pipeline]'"

DESCRIPTION = """\
Archive topics to a lake of Delta tables with Spark; keep the lake tidy, ask it, look at it, send it
back to a topic. Needs Java 17 or newer and the extra packages of `pip install 'moldau[pipeline]'`.
"""
EXAMPLES = """\
examples:
  moldau pipeline archive --lake /data/lake --topic orders --once
  moldau pipeline archive --lake /data/lake --pattern 'orders\\..*' --continuous
  moldau pipeline sql --lake /data/lake "select topic, count(*) from records group by topic"
  moldau pipeline replay --lake /data/lake --topic orders --to orders-again

the source by itself, in PySpark (options and columns of Spark's own Kafka source):
  from ops.pipeline.source import MoldauSource
  spark.dataSource.register(MoldauSource)
  spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092") \\
      .option("subscribe", "orders").load()
"""
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.set_defaults(action=None, action_parser=parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_archive(actions)
    # Not before: it takes its options from here.
    from ops.pipeline.lake_commands import add_lake_actions

    add_lake_actions(actions)


def _add_archive(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    made = actions.add_parser(
        "archive",
        help="topics to Delta tables, exactly once",
        description="Archive topics to Delta tables, exactly once.",
        epilog=f"{ARCHIVE_EXAMPLES}\n{EXIT_CODES}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_lake(made)
    made.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"where the broker is ({DEFAULT_BOOTSTRAP}, or what {BOOTSTRAP_ENV} says)",
    )
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
    made.set_defaults(action=_archive, action_parser=made)


def add_lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lake", required=True, metavar="PATH",
        help="the directory of the lake; on a cluster, the same for every worker",
    )  # fmt: skip


def add_master(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="URL",
        help="where Spark runs: local[N], spark://HOST:PORT, … (local, with every core)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.action_parser
    if arguments.action is None:
        parser.print_help()
        return 2
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"moldau: the pipeline needs {', '.join(missing)}; install it with: {INSTALL}",
            file=sys.stderr,
        )
        return 1
    try:
        code: int = arguments.action(arguments)
    except ClientError as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        print("\nmoldau: interrupted", file=sys.stderr)
        return 1
    return code


def _archive(arguments: argparse.Namespace) -> int:
    from ops.pipeline.archive import Archiver, Settings
    from ops.pipeline.fetch import connect
    from ops.pipeline.lake import Lake, Lock
    from ops.pipeline.options import read_options
    from ops.pipeline.progress import Meter
    from ops.pipeline.session import check_java, session

    settings = Settings(
        arguments.bootstrap or os.environ.get(BOOTSTRAP_ENV) or DEFAULT_BOOTSTRAP,
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
        with session("moldau-archive", arguments.master, plans_only=True) as spark:
            archiver = Archiver(spark, lake, settings, meter)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: archiver.stop())
            archiver.run(continuous=arguments.continuous)
        told = meter.told()
    print(f"archived {told}")
    return 0
