"""Moving the committed offsets of a group: where to, the plan, and committing it.

Making the plan changes nothing. It is committed with an OffsetCommit of a simple consumer, which a
coordinator accepts only while the group has no members, and then read back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.ops.client import EARLIEST, LATEST, ClientError, Cluster, TopicPartition, refusal
from moldau.ops.operations.group_history import offsets_at, offsets_before_reset, read_events
from moldau.ops.operations.groups import committed_offsets, find_group

INACTIVE = ("Empty", "Dead")
COMMIT_AT, UNDO = "commit-at", "undo"


class Goal(NamedTuple):
    """Where to move offsets: `kind` is earliest, latest, datetime (epoch ms), shift, offset,
    commit-at or undo."""

    kind: str
    value: int = 0


class Move(NamedTuple):
    place: TopicPartition
    before: int | None
    after: int
    start: int
    end: int
    cut: bool  # the goal was outside of the log


def parse_datetime(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time; UTC unless it says otherwise. Raises ValueError."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"want a time such as 2026-03-01T08:00:00Z, got {text!r}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta():
        raise ValueError(f"want a time from 1970 on, got {text!r}")
    # Up, not down: a record before the time must not be found.
    return -(-since // timedelta(milliseconds=1))


def parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"want a whole number, got {text!r}") from None


def parse_offset(text: str) -> int:
    offset = parse_integer(text)
    if offset < 0:
        raise ValueError(f"offsets begin at 0, got {text}")
    return offset


def parse_topic(text: str) -> tuple[str, frozenset[int] | None]:
    """`topic` or `topic:0,1`; None stands for all partitions. Raises ValueError."""
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []
    if not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"want TOPIC or TOPIC:PARTITION,PARTITION, got {text!r}")
    return name, frozenset(map(int, parts)) if colon else None


# By their names in the options of `groups reset-offsets` and in the console's form.
GOALS: dict[str, Callable[[str], Goal]] = {
    "earliest": lambda _: Goal("earliest"),
    "latest": lambda _: Goal("latest"),
    "datetime": lambda text: Goal("datetime", parse_datetime(text)),
    "shift": lambda text: Goal("shift", parse_integer(text)),
    "offset": lambda text: Goal("offset", parse_offset(text)),
    COMMIT_AT: lambda text: Goal(COMMIT_AT, parse_datetime(text)),
    UNDO: lambda _: Goal(UNDO),
}


def make_plan(
    cluster: Cluster,
    group_id: str,
    topics: Iterable[tuple[str, frozenset[int] | None]] | None,
    goal: Goal,
) -> list[Move]:
    """The offsets to commit; `topics` None: every partition with a commit. Raises ClientError."""
    group = find_group(cluster, group_id)
    if group is not None and group.group_state not in INACTIVE:
        raise ClientError(
            f"group {group_id}: it is {group.group_state} (members: {len(group.members)}), and "
            "offsets of an active group cannot be reset; stop its consumers first "
            f"(`moldau groups describe {group_id}` shows its members)",
            ErrorCode.NON_EMPTY_GROUP,
        )
    committed = {place: one.offset for place, one in committed_offsets(cluster, group_id).items()}
    known = _known_from_history(cluster, group_id, goal)
    if topics is None and known is not None:
        places = set(known)
    elif topics is None:
        if not committed:
            raise ClientError(
                f"group {group_id}: it has committed nothing, so --all-topics names no topic; "
                "choose some with --topic"
            )
        places = set(committed)
    else:
        places = _named_places(cluster, topics)
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    for place in sorted(places):
        if place not in starts or place not in ends:
            raise refusal(f"partition {place}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    by_time = {}
    if goal.kind == "datetime":
        by_time = cluster.list_offsets(dict.fromkeys(places, goal.value))
    plan = []
    for place in sorted(places):
        start, end = starts[place], ends[place]
        before = committed.get(place)
        if known is not None:
            by_time[place] = known.get(place, -1)
            if by_time[place] < 0:
                continue  # nothing was committed there then
        wanted = _wanted(place, goal, start, end, before, by_time.get(place, -1))
        after = min(max(wanted, start), end)
        plan.append(Move(place, before, after, start, end, cut=after != wanted))
    return plan


def _known_from_history(
    cluster: Cluster, group_id: str, goal: Goal
) -> dict[TopicPartition, int] | None:
    """The offsets to go back to, for goals that need the history; None for the others."""
    if goal.kind not in (COMMIT_AT, UNDO):
        return None
    events = read_events(cluster, group_id, 0)
    found = (
        offsets_at(events, goal.value) if goal.kind == COMMIT_AT else offsets_before_reset(events)
    )
    if found is None:
        raise ClientError(
            f"group {group_id}: its offsets of that time are not known; the broker notes them once "
            "a minute and before a reset, and keeps them for seven days "
            "(`moldau groups history` shows what is known)"
        )
    return found.offsets


def _named_places(
    cluster: Cluster, topics: Iterable[tuple[str, frozenset[int] | None]]
) -> set[TopicPartition]:
    wanted = list(topics)
    found = cluster.topics({name for name, _ in wanted})
    places: set[TopicPartition] = set()
    for name, partitions in wanted:
        if name not in found:
            raise refusal(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        known = {one.partition_index for one in found[name].partitions}
        for missing in sorted((partitions or known) - known):
            raise ClientError(
                f"topic {name}: it has no partition {missing}, only 0 to {max(known)}; "
                f"`moldau topics describe {name}` shows them"
            )
        places |= {TopicPartition(name, index) for index in (partitions or known)}
    return places


def _wanted(
    place: TopicPartition, goal: Goal, start: int, end: int, before: int | None, by_time: int
) -> int:
    match goal.kind:
        case "earliest":
            return start
        case "latest":
            return end
        case "datetime" | "commit-at" | "undo":
            return by_time if by_time >= 0 else end  # no record is that late: the next one
        case "offset":
            return goal.value
    if before is None:
        raise ClientError(
            f"partition {place}: the group has committed nothing there to shift from; leave it out "
            "(--topic TOPIC:PARTITION,… or --all-topics), or use another goal"
        )
    return before + goal.value


def execute(cluster: Cluster, group_id: str, plan: Collection[Move]) -> None:
    """Commit the plan and read it back. Raises ClientError."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for move in plan:
        topics.setdefault(move.place.topic, []).append(
            OffsetCommitRequestPartition(move.place.partition, move.after, -1, "")
        )
    request = OffsetCommitRequest(
        group_id,
        topics=[OffsetCommitRequestTopic(name, partitions=p) for name, p in topics.items()],
    )
    answer = cluster.call_coordinator(group_id, request, _first_error)
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                place = TopicPartition(topic.name, one.partition_index)
                raise refusal(f"group {group_id}, partition {place}", one.error_code)
    stored = committed_offsets(cluster, group_id)
    for move in plan:
        found = stored.get(move.place)
        if found is None or found.offset != move.after:
            raise ClientError(
                f"group {group_id}, partition {move.place}: {move.after} was committed but "
                f"{'nothing' if found is None else found.offset} is stored; did a consumer start "
                "meanwhile? Stop it and run this again"
            )


def _first_error(answer: OffsetCommitResponse) -> int:
    """The group's error code is repeated for every partition."""
    codes = (one.error_code for topic in answer.topics for one in topic.partitions)
    return next((code for code in codes if code), 0)
