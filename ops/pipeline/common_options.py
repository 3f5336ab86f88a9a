"""Options that several actions of `moldau pipeline` share: the lake, and where Spark runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from moldau.ops.command_line import Actions, add_action


def add_lake_action(
    actions: Actions, name: str, summary: str, text: str, action: Callable[..., int]
) -> argparse.ArgumentParser:
    """An action that works on a lake with Spark: it has --lake and --master."""
    parser = add_action(actions, name, summary, text, action)
    parser.add_argument(
        "--lake", required=True, metavar="PATH",
        help="the directory of the lake; on a cluster, the same path on every worker",
    )  # fmt: skip
    parser.add_argument(
        "--master", metavar="URL",
        help="where Spark runs: local[N], spark://HOST:PORT, … (default: here, on every core)",
    )  # fmt: skip
    return parser


def whole_number(text: str) -> int:
    """Parse a number from 0 on, for argparse."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


whole_number.__name__ = "number from 0"
