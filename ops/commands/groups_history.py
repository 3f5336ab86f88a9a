"""`moldau groups history` and `explain`: how the history of a group is shown."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from typing import Any

from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import (
    AddAction,
    duration_text,
    parse_duration,
    parsed_by,
    print_json,
    print_table,
)
from moldau.ops.operations.group_history import Film, explain, film, read_events

HISTORY_HELP = """\
examples:
  moldau groups history billing                  the last hour
  moldau groups history billing --since 2d --json

Who read which partition, the pauses of rebalances with their causes, who joined, left and expired.
The broker keeps seven days of it (topic __moldau_group_events).
"""

EXPLAIN_HELP = """\
examples:
  moldau groups explain billing --since 2h

Rebalances by cause, the time in which reading stopped, and the members that came and went most.
"""

DAY_MS = 86_400_000


def add_history(add: AddAction) -> None:
    parser = add("history", "show who read what, and when that stopped", HISTORY_HELP, _history)
    _add_arguments(parser)


def add_explain(add: AddAction) -> None:
    parser = add("explain", "show why a group rebalanced, and what it cost", EXPLAIN_HELP, _explain)
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument(
        "--since", type=parsed_by(parse_duration), default=3_600_000, metavar="TIME",
        help="how far back, such as 30min, 2h or 7d (1h)",
    )  # fmt: skip


def _film(cluster: Cluster, arguments: argparse.Namespace) -> Film:
    now_ms = int(time.time() * 1000)
    since_ms = now_ms - arguments.since
    events = read_events(cluster, arguments.group, since_ms)
    if not events:
        raise ClientError(
            f"group {arguments.group}: nothing is known of it in this time; --since 7d looks back "
            "as far as events are kept, `moldau groups list` shows what exists"
        )
    return film(events, since_ms, now_ms)


def _history(cluster: Cluster, arguments: argparse.Namespace) -> int:
    shown = _film(cluster, arguments)
    if arguments.json:
        print_json(document(arguments.group, shown))
        return 0
    rows: list[tuple[int, str, str]] = [
        (pause.since_ms, "rebalance", f"{_took(pause.until_ms - pause.since_ms)}: {pause.cause}")
        for pause in shown.pauses
    ]
    rows += [(marker.at_ms, "", marker.text) for marker in shown.markers]
    for (at_ms, client, _), places in _assigned(shown).items():
        rows.append((at_ms, "assigned", f"{client}: {', '.join(places)}"))
    rows += [
        (each.at_ms, "offsets", "moved or removed by hand") for each in shown.commits if each.before
    ]
    print_table(
        ("time", "event", "what"), [(_time(at), what, text) for at, what, text in sorted(rows)]
    )
    return 0


def _assigned(shown: Film) -> dict[tuple[int, str, str], list[str]]:
    """Partitions by member: members on a host often share a client id, a library's default."""
    found: dict[tuple[int, str, str], list[str]] = {}
    for span in shown.spans:
        key = span.since_ms, f"{span.client} ({span.host})", span.member
        found.setdefault(key, []).append(f"{span.place.topic}-{span.place.partition}")
    return found


def _explain(cluster: Cluster, arguments: argparse.Namespace) -> int:
    found = explain(_film(cluster, arguments))
    if arguments.json:
        print_json(
            {
                "group": arguments.group,
                "rebalances": found.rebalances,
                "lost_ms": found.lost_ms,
                "causes": [
                    {"cause": cause, "count": count, "lost_ms": lost}
                    for cause, count, lost in found.causes
                ],
                "members": [
                    {"member": member, "came": came, "went": went}
                    for member, came, went in found.members
                ],
            }
        )
        return 0
    share = 100 * found.lost_ms / max(arguments.since, 1)
    print(
        f"{found.rebalances} rebalances in {_took(arguments.since)}; reading stopped for "
        f"{_took(found.lost_ms)} ({share:.2g} %)"
    )
    if found.causes:
        print()
        print_table(
            ("cause", "rebalances", "time lost"),
            [(cause, count, _took(lost)) for cause, count, lost in found.causes],
        )
    if found.members:
        print()
        print_table(("member", "came", "went"), found.members[:10])
    return 0


def document(group: str, shown: Film) -> dict[str, Any]:
    return {
        "group": group,
        "since_ms": shown.since_ms,
        "until_ms": shown.until_ms,
        "owners": [
            {
                "topic": span.place.topic,
                "partition": span.place.partition,
                "member": span.member,
                "client": span.client,
                "host": span.host,
                "since_ms": span.since_ms,
                "until_ms": span.until_ms,
            }
            for span in shown.spans
        ],
        "rebalances": [pause._asdict() for pause in shown.pauses],
        "events": [marker._asdict() for marker in shown.markers],
    }


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _took(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else duration_text(milliseconds / 1000)
