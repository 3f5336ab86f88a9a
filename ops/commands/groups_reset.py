"""`moldau groups reset-offsets`: its options, and how the plan is shown. See reset_offsets.py."""

from __future__ import annotations

import argparse
from typing import Any

from moldau.ops.client import Cluster
from moldau.ops.command_line import AddAction, parsed_by, print_json, print_table
from moldau.ops.operations.configs import topic_configs
from moldau.ops.operations.reset_offsets import (
    COMMIT_AT,
    GOALS,
    UNDO,
    Goal,
    Move,
    execute,
    make_plan,
    parse_topic,
)
from moldau.ops.operations.topics import native_storage

HELP = """\
examples:
  moldau groups reset-offsets billing --all-topics --to-earliest
  moldau groups reset-offsets billing --topic orders --to-datetime 2026-03-01T08:00:00+01:00
  moldau groups reset-offsets billing --topic orders:0,1 --topic prices --shift-by -100 --execute
  moldau groups reset-offsets billing --topic orders:0 --to-offset 42 --execute
  moldau groups reset-offsets billing --all-topics --to-commit-at 2026-03-01T14:05:00Z
  moldau groups reset-offsets billing --all-topics --undo --execute

Nothing is changed without --execute: the plan is printed. The group must have no members. An offset
outside of the log becomes its start or end. A group that does not exist is created by its first
commit.
"""


def add_reset(add: AddAction) -> None:
    parser = add("reset-offsets", "move the offsets a group has committed", HELP, _reset)
    parser.add_argument("group", metavar="GROUP")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topic", type=parsed_by(parse_topic), action="append", metavar="TOPIC[:P,P]",
        help="all partitions of a topic, or some; may be repeated",
    )  # fmt: skip
    which.add_argument(
        "--all-topics", action="store_true", help="every partition the group has an offset for"
    )
    goal = parser.add_mutually_exclusive_group(required=True)
    _add_fixed(goal, "--to-earliest", Goal("earliest"), "the start of the log")
    _add_fixed(goal, "--to-latest", Goal("latest"), "its end")
    _add_valued(
        goal, "--to-datetime", "T", GOALS["datetime"],
        "the first record at or after this ISO 8601 time (UTC unless it names an offset)",
    )  # fmt: skip
    _add_valued(
        goal, "--shift-by", "N", GOALS["shift"],
        "so many records from what is committed, back if negative",
    )  # fmt: skip
    _add_valued(goal, "--to-offset", "N", GOALS["offset"], "this offset")
    _add_valued(
        goal, "--to-commit-at", "T", GOALS[COMMIT_AT],
        "what the group had committed at this time, as far as its history is kept",
    )  # fmt: skip
    _add_fixed(goal, "--undo", Goal(UNDO), "what was committed before the last reset or deletion")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print the plan only (default)")
    mode.add_argument("--execute", action="store_true", help="commit it")


def _add_fixed(group: Any, flag: str, goal: Goal, text: str) -> None:
    group.add_argument(flag, dest="goal", action="store_const", const=goal, help=text)


def _add_valued(group: Any, flag: str, metavar: str, parse: Any, text: str) -> None:
    group.add_argument(flag, dest="goal", metavar=metavar, type=parsed_by(parse), help=text)


def _reset(cluster: Cluster, arguments: argparse.Namespace) -> int:
    plan = make_plan(cluster, arguments.group, arguments.topic, arguments.goal)
    if arguments.execute:
        execute(cluster, arguments.group, plan)
    if arguments.json:
        print_json(
            {
                "group": arguments.group,
                "executed": arguments.execute,
                "partitions": [_document(move) for move in plan],
            }
        )
        return 0
    rows = [
        (*move.place, move.before, move.after, move.start, move.end, _lag_after(cluster, move))
        for move in plan
    ]
    print_table(("topic", "partition", "before", "after", "start", "end", "lag after"), rows)
    if cut := [str(move.place) for move in plan if move.cut]:
        print(f"outside of the log, so its start or end is used instead: {', '.join(cut)}")
    if arguments.execute:
        print(f"{len(plan)} offsets committed and read back")
    else:
        print("nothing was changed; add --execute to commit this plan")
    return 0


def _lag_after(cluster: Cluster, move: Move) -> int | None:
    """The lag in records, which does not follow from the offsets of a native topic."""
    lag = move.end - move.after
    if lag and native_storage(topic_configs(cluster, move.place.topic)) is not None:
        return None
    return lag


def _document(move: Move) -> dict[str, Any]:
    return {
        "topic": move.place.topic,
        "partition": move.place.partition,
        "before": move.before,
        "after": move.after,
        "start_offset": move.start,
        "end_offset": move.end,
        "cut_to_log": move.cut,
    }
