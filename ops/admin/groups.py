"""`moldau groups`: list, describe and delete consumer groups, and reset their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from broker.wire.messages.delete_groups import DeleteGroupsRequest
from broker.wire.messages.list_groups import ListGroupsRequest
from ops.admin.group_state import describe
from ops.admin.reset_offsets import Goal, Move, execute, make_plan, parse_datetime, parse_topic
from ops.client import ClientError, Cluster, refusal
from ops.command_line import (
    add_actions,
    complain,
    print_facts,
    print_json,
    print_table,
    printable,
    run_action,
)

DESCRIPTION = "List, describe and delete consumer groups, and reset their offsets."

EXAMPLES = """\
examples:
  moldau groups list
  moldau groups describe billing
  moldau groups reset-offsets billing --topic orders --to-earliest
  moldau groups delete billing
  moldau groups ACTION --help       all options of an action
"""

NOT_COUNTED = (
    "lag - of a native topic: not known, its offsets are times; records are counted where the\n"
    "broker runs on this machine, up to 10,000, or where Redis has counted them (XINFO GROUPS)"
)
STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead")

RESET_EXAMPLES = """\
examples:
  moldau groups reset-offsets billing --all-topics --to-earliest
  moldau groups reset-offsets billing --topic orders --to-datetime 2026-03-01T08:00:00+01:00
  moldau groups reset-offsets billing --topic orders:0,1 --topic prices --shift-by -100 --execute
  moldau groups reset-offsets billing --topic orders:0 --to-offset 42 --execute

Nothing is changed without --execute: the plan is printed, before and after. The group must have
no members. A goal outside of the log becomes its start or end. A group that does not exist is
made by its first commit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    listing = add(
        "list",
        "show the groups of all brokers",
        "examples:\n  moldau groups list\n  moldau groups list --state Empty --json\n",
        _list,
    )
    listing.add_argument(
        "--state", type=_typed(_state), action="append", default=[], metavar="STATE",
        help=f"only groups that are {', '.join(STATES)}; may be repeated",
    )  # fmt: skip

    describing = add(
        "describe",
        "show members, assignment, offsets and lag",
        "examples:\n  moldau groups describe billing\n"
        "  moldau groups describe billing --json | jq '.groups[0].total_lag'\n\n"
        "lag is in records, unknown where nothing is committed, and of a native topic where the\n"
        "store cannot be asked or more than 10,000 would have to be counted; identity and\n"
        "generation are shown where the broker runs on this machine: Kafka's protocol does not\n"
        "carry them\n",
        _describe,
    )
    describing.add_argument("groups", nargs="+", metavar="GROUP")

    deleting = add(
        "delete",
        "delete groups without members, and their offsets",
        "examples:\n  moldau groups delete billing\n",
        _delete,
    )
    deleting.add_argument("groups", nargs="+", metavar="GROUP")

    reset = add("reset-offsets", "move the offsets a group has committed", RESET_EXAMPLES, _reset)
    reset.add_argument("group", metavar="GROUP")
    which = reset.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topic", type=_typed(parse_topic), action="append", metavar="TOPIC[:P,P]",
        help="all partitions of a topic, or some; may be repeated",
    )  # fmt: skip
    which.add_argument(
        "--all-topics", action="store_true", help="every partition the group has an offset of"
    )
    goal = reset.add_mutually_exclusive_group(required=True)
    _add_goal(goal, "--to-earliest", Goal("earliest"), "the start of the log")
    _add_goal(goal, "--to-latest", Goal("latest"), "its end")
    goal.add_argument(
        "--to-datetime", dest="goal", metavar="T", type=_typed(_datetime_goal),
        help="the first record at or after this ISO 8601 time (UTC unless it names an offset)",
    )  # fmt: skip
    goal.add_argument(
        "--shift-by", dest="goal", metavar="N", type=_typed(_shift_goal),
        help="from what is committed, back if negative",
    )  # fmt: skip
    goal.add_argument(
        "--to-offset", dest="goal", metavar="N", type=_typed(_offset_goal), help="this offset"
    )
    mode = reset.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print the plan only (default)")
    mode.add_argument("--execute", action="store_true", help="commit it")


def run(arguments: argparse.Namespace) -> int:
    return run_action(arguments)


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse hides the text of a ValueError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _add_goal(group: Any, flag: str, goal: Goal, text: str) -> None:
    group.add_argument(flag, dest="goal", action="store_const", const=goal, help=text)


def _state(text: str) -> str:
    for state in STATES:
        if state.lower() == text.lower():
            return state
    raise ValueError(f"no group is ever {text}: choose from {', '.join(STATES)}")


def _datetime_goal(text: str) -> Goal:
    return Goal("datetime", parse_datetime(text))


def _shift_goal(text: str) -> Goal:
    return Goal("shift", _integer(text))


def _offset_goal(text: str) -> Goal:
    offset = _integer(text)
    if offset < 0:
        raise ValueError(f"offsets begin at 0, got {text}")
    return Goal("offset", offset)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"want a whole number, got {text!r}") from None


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    groups: dict[str, dict[str, Any]] = {}
    for node in cluster.nodes():
        answer = cluster.call(ListGroupsRequest(arguments.state), node)
        if answer.error_code:
            raise refusal(f"groups of broker {node.node_id}", answer.error_code)
        for told in answer.groups:
            groups[told.group_id] = {
                "group": told.group_id,
                "state": told.group_state,
                "type": told.group_type,
                "protocol_type": told.protocol_type,
                "coordinator": {"id": node.node_id, "address": node.address},
            }
    listed = [groups[group_id] for group_id in sorted(groups)]
    if arguments.json:
        print_json({"groups": listed})
    else:
        rows = [
            (one["group"], one["state"], one["protocol_type"], one["coordinator"]["address"])
            for one in listed
        ]
        print_table(("group", "state", "protocol type", "coordinator"), rows)
    return 0


# --- describe ---


def _describe(cluster: Cluster, arguments: argparse.Namespace) -> int:
    from ops.admin.local_store import open_store
    from ops.admin.native_lag import NativeLags

    described, failed = [], False
    with open_store(cluster.bootstrap.port, cluster.metadata().cluster_id) as store:
        native = NativeLags(cluster, store)
        for group_id in dict.fromkeys(arguments.groups):
            try:
                described.append(describe(cluster, store, native, group_id))
            except ClientError as error:
                failed = True
                complain(error)
    if arguments.json:
        print_json({"groups": described})
    else:
        for number, group in enumerate(described):
            if number:
                print()
            _print_described(group)
    return 1 if failed else 0


def _print_described(group: dict[str, Any]) -> None:
    coordinator = group["coordinator"]
    print_facts(
        {
            "group": group["group"],
            "identity": group["identity"],
            "state": group["state"],
            "generation": group["generation"],
            "protocol type": group["protocol_type"],
            "protocol": group["protocol"],
            "coordinator": f"{coordinator['id']} ({coordinator['address']})",
            "members": len(group["members"]),
            "total lag": group["total_lag"],
        }
    )
    if group["members"]:
        print()
        print_table(
            ("member", "instance", "client", "host", "assignment"),
            [
                (
                    one["member_id"],
                    one["instance_id"],
                    one["client_id"],
                    one["host"],
                    _assignment_text(one["assignment"]),
                )
                for one in group["members"]
            ],
        )
    if group["partitions"]:
        print()
        print_table(
            ("topic", "partition", "committed", "end", "lag", "client", "member"),
            [
                (
                    one["topic"],
                    one["partition"],
                    one["committed_offset"],
                    one["end_offset"],
                    one["lag"],
                    one["client_id"],
                    one["member_id"],
                )
                for one in group["partitions"]
            ],
        )
    if any(_is_not_counted(one) for one in group["partitions"]):
        print(NOT_COUNTED)


def _is_not_counted(partition: dict[str, Any]) -> bool:
    is_behind = partition["committed_offset"] is not None and partition["end_offset"] is not None
    return bool(partition["native"] and is_behind and partition["lag"] is None)


def _assignment_text(assignment: dict[str, list[int]] | None) -> str | None:
    if assignment is None:
        return "(of another protocol)"
    return " ".join(
        f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in assignment.items()
    )


# --- delete, reset-offsets ---


def _delete(cluster: Cluster, arguments: argparse.Namespace) -> int:
    deleted, failed = [], False
    for group_id in dict.fromkeys(arguments.groups):
        try:
            answer = cluster.call_coordinator(
                group_id,
                DeleteGroupsRequest([group_id]),
                lambda told: int(told.results[0].error_code),
            ).results[0]
            if answer.error_code:
                raise refusal(f"group {group_id}", answer.error_code)
        except ClientError as error:
            failed = True
            complain(error)
        else:
            deleted.append(group_id)
    if arguments.json:
        print_json({"deleted": deleted})
    else:
        for group_id in deleted:
            print(f"{printable(group_id)} deleted")
    return 1 if failed else 0


def _reset(cluster: Cluster, arguments: argparse.Namespace) -> int:
    plan = make_plan(cluster, arguments.group, arguments.topic, arguments.goal)
    if arguments.execute:
        execute(cluster, arguments.group, plan)
    if arguments.json:
        print_json(
            {
                "group": arguments.group,
                "executed": arguments.execute,
                "partitions": [_move_document(move) for move in plan],
            }
        )
        return 0
    rows = [
        (*move.place, move.before, move.after, move.start, move.end, _lag_after(cluster, move))
        for move in plan
    ]
    print_table(("topic", "partition", "before", "after", "start", "end", "lag after"), rows)
    if cut := [str(move.place) for move in plan if move.cut]:
        print(f"the goal lies outside of the log, so its start or end is taken: {', '.join(cut)}")
    if arguments.execute:
        print(f"{len(plan)} offsets committed and read back")
    else:
        print("nothing was changed; add --execute to commit this plan")
    return 0


def _lag_after(cluster: Cluster, move: Move) -> int | None:
    """In records, which the offsets of a native topic do not tell."""
    from ops.admin.topics_describe import native_facts, topic_configs

    lag = move.end - move.after
    if lag and native_facts(topic_configs(cluster, move.place.topic)) is not None:
        return None
    return lag


def _move_document(move: Move) -> dict[str, Any]:
    return {
        "topic": move.place.topic,
        "partition": move.place.partition,
        "before": move.before,
        "after": move.after,
        "start_offset": move.start,
        "end_offset": move.end,
        "cut_to_log": move.cut,
    }
