"""What the actions of `moldau pipeline` have in common: a lake, and a Spark that works on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ops.command_line import Actions, add_action


def add_lake_action(
    actions: Actions, name: str, summary: str, text: str, action: Callable[..., int]
) -> argparse.ArgumentParser:
    made = add_action(actions, name, summary, text, action)
    made.add_argument(
        "--lake", required=True, metavar="PATH",
        help="the directory of the lake; on a cluster, the same for every worker",
    )  # fmt: skip
    return made


def add_master(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="URL",
        help="where Spark runs: local[N], spark://HOST:PORT, … (local, with every core)",
    )  # fmt: skip
