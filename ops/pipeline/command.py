"""`moldau pipeline`: topics on Spark. Each room has the command of its own actions."""

from __future__ import annotations

import argparse
import importlib.util

from moldau.ops.client import ClientError
from moldau.ops.command_line import begin_actions, run_chosen
from moldau.ops.pipeline.archive.command import add_archive_action
from moldau.ops.pipeline.lake.command import add_compact_action, add_sql_action
from moldau.ops.pipeline.replay.command import add_replay_action
from moldau.ops.pipeline.report.command import add_report_action

NEEDED = ("pyspark", "deltalake", "pyarrow", "numpy")
INSTALL = "pip install 'moldau[pipeline]'"

DESCRIPTION = """\
Archive topics to a lake of Delta tables with Spark; compact and query the lake, replay it to a
topic, report on it. Needs Java 17 or newer and the packages of `pip install 'moldau[pipeline]'`.
"""
EXAMPLES = """\
examples:
  moldau pipeline archive --lake /data/lake --topic orders --once
  moldau pipeline archive --lake /data/lake --pattern 'orders\\..*' --continuous
  moldau pipeline sql --lake /data/lake "select topic, count(*) from records group by topic"
  moldau pipeline replay --lake /data/lake --topic orders --to orders-again

the Spark source, in PySpark (options and columns of Spark's own Kafka source):
  from moldau import MoldauSource
  spark.dataSource.register(MoldauSource)
  spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092") \\
      .option("subscribe", "orders").load()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = begin_actions(parser, DESCRIPTION, EXAMPLES)
    add_archive_action(actions)
    add_compact_action(actions)
    add_sql_action(actions)
    add_replay_action(actions)
    add_report_action(actions)


def run(arguments: argparse.Namespace) -> int:
    return run_chosen(arguments, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ClientError(f"the pipeline needs {', '.join(missing)}; install it with: {INSTALL}")
    code: int = arguments.action(arguments)
    return code
