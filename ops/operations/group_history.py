"""The history of a group: who read which partition, when that stopped and why.

Made from the events in `__moldau_group_events` (broker/coordinator/groups/events.py), which the
broker keeps for seven days. The console draws it, `moldau groups history` and `explain` print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from moldau.broker.topics.topics import GROUP_EVENTS
from moldau.ops.client import EARLIEST, LATEST, Cluster, TopicPartition
from moldau.ops.client.reading import OffsetOutOfRange, read

MAX_EVENTS = 20_000  # of one group, the newest
READ_BYTES = 4 << 20
_PLACE = TopicPartition(GROUP_EVENTS, 0)


class Event(NamedTuple):
    at_ms: int
    name: str
    facts: dict[str, Any]


class Span(NamedTuple):
    """A partition belonged to a member from one time to another."""

    place: TopicPartition
    member: str
    client: str
    host: str
    since_ms: int
    until_ms: int


class Pause(NamedTuple):
    """No member read: a rebalance, from its start to the assignment."""

    since_ms: int
    until_ms: int
    cause: str
    generation: int


class Marker(NamedTuple):
    """An event in words."""

    at_ms: int
    text: str
    member: str = ""


class Offsets(NamedTuple):
    """Committed offsets at a time; `before`: just before somebody moved or removed them."""

    at_ms: int
    offsets: dict[TopicPartition, int]
    before: bool = False


class Film(NamedTuple):
    since_ms: int
    until_ms: int
    spans: list[Span]
    pauses: list[Pause]
    markers: list[Marker]
    commits: list[Offsets]

    @property
    def places(self) -> list[TopicPartition]:
        return sorted({span.place for span in self.spans})

    @property
    def members(self) -> list[str]:
        return sorted({span.member for span in self.spans})


# --- reading ---


def read_events(cluster: Cluster, group: str, since_ms: int) -> list[Event]:
    """The events of a group since a time, and the last assignment before it. Raises ClientError."""
    if GROUP_EVENTS not in cluster.topics([GROUP_EVENTS]):
        return []
    key = group.encode()
    start = cluster.list_offsets({_PLACE: EARLIEST})[_PLACE]
    end = cluster.list_offsets({_PLACE: LATEST})[_PLACE]
    events: list[Event] = []
    position = start
    while position < end:
        try:
            found = read(cluster, _PLACE, position, max_bytes=READ_BYTES)
        except OffsetOutOfRange:
            position = cluster.list_offsets({_PLACE: EARLIEST})[_PLACE]
            continue
        events += [parse(each.value or b"{}") for each in found.records if each.key == key]
        if found.next_offset <= position:
            break
        position = found.next_offset
        if len(events) > 2 * MAX_EVENTS:
            del events[:-MAX_EVENTS]
    return since(events[-MAX_EVENTS:], since_ms)


def parse(value: bytes) -> Event:
    facts = msgspec.json.decode(value, type=dict[str, Any])
    return Event(int(facts.get("time_ms", 0)), str(facts.get("event", "")), facts)


def since(events: list[Event], since_ms: int) -> list[Event]:
    """Events since a time, after the assignment that was in force then."""
    before = [each for each in events if each.at_ms < since_ms]
    last = next((each for each in reversed(before) if each.name in _ENDS_ASSIGNMENT), None)
    kept = [last] if last is not None and last.name == "assigned" else []
    return kept + [each for each in events if each.at_ms >= since_ms]


_ENDS_ASSIGNMENT = frozenset({"assigned", "rebalance_started", "group_empty", "group_deleted"})


# --- the film ---


def film(events: Iterable[Event], since_ms: int, until_ms: int) -> Film:
    """Arrange events as spans, pauses and markers between two times. Pure."""
    spans: list[Span] = []
    pauses: list[Pause] = []
    markers: list[Marker] = []
    commits: list[Offsets] = []
    owned: dict[TopicPartition, tuple[str, str, str, int]] = {}
    paused: tuple[int, str, int] | None = None  # since, cause, generation

    def end_spans(at_ms: int) -> None:
        for place, (member, client, host, begun) in owned.items():
            if at_ms > begun:
                spans.append(Span(place, member, client, host, max(begun, since_ms), at_ms))
        owned.clear()

    for at_ms, name, facts in events:
        if name == "rebalance_started":
            end_spans(at_ms)
            if paused is None:
                paused = at_ms, str(facts.get("reason", "")), int(facts.get("generation", 0))
        elif name in ("rebalance_completed", "group_empty", "group_deleted"):
            if paused is not None:
                pauses.append(Pause(paused[0], at_ms, paused[1], paused[2]))
                paused = None
            if name != "rebalance_completed":
                end_spans(at_ms)
                markers.append(Marker(at_ms, name.replace("_", " ")))
        elif name == "assigned":
            end_spans(at_ms)
            for place, owner in _owners(facts):
                owned[place] = (*owner, at_ms)
        elif name.startswith("member_"):
            client, host = facts.get("client", ""), str(facts.get("host", "")).removeprefix("/")
            what = name.removeprefix("member_")
            text = f"{client} ({host}) {what}"
            markers.append(Marker(at_ms, text, str(facts.get("member", ""))))
        elif name == "commits":
            offsets = {
                TopicPartition(topic, partition): offset
                for topic, pairs in facts.get("offsets", {}).items()
                for partition, offset in pairs
            }
            commits.append(Offsets(at_ms, offsets, bool(facts.get("before"))))
    end_spans(until_ms)
    if paused is not None:
        pauses.append(Pause(paused[0], until_ms, paused[1], paused[2]))
    return Film(since_ms, until_ms, sorted(spans), pauses, markers, commits)


def _owners(facts: dict[str, Any]) -> Iterator[tuple[TopicPartition, tuple[str, str, str]]]:
    for owner in facts.get("owners", ()):
        who = (
            str(owner.get("member", "")),
            str(owner.get("client", "")),
            str(owner.get("host", "")).removeprefix("/"),
        )
        for topic, ranges in owner.get("topics", {}).items():
            for partition in numbers_of(ranges):
                yield TopicPartition(topic, partition), who


def numbers_of(ranges: str) -> Iterator[int]:
    """0-3,7 as 0, 1, 2, 3, 7."""
    for part in filter(None, ranges.split(",")):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


# --- what to learn from it ---


class Explanation(NamedTuple):
    rebalances: int
    lost_ms: int  # time in which no member read
    causes: list[tuple[str, int, int]]  # cause, how often, time lost
    members: list[tuple[str, int, int]]  # client, how often it came, how often it went or expired


def explain(shown: Film) -> Explanation:
    causes: dict[str, tuple[int, int]] = {}
    for pause in shown.pauses:
        cause = kind_of(pause.cause)
        count, lost = causes.get(cause, (0, 0))
        causes[cause] = count + 1, lost + pause.until_ms - pause.since_ms
    members: dict[str, tuple[int, int]] = {}
    for marker in shown.markers:
        if not marker.member:
            continue
        client, _, what = marker.text.rpartition(" ")
        came, went = members.get(client, (0, 0))
        members[client] = (came + 1, went) if what == "joined" else (came, went + 1)
    return Explanation(
        len(shown.pauses),
        sum(pause.until_ms - pause.since_ms for pause in shown.pauses),
        sorted(((c, *facts) for c, facts in causes.items()), key=lambda row: -row[2]),
        sorted(((m, *facts) for m, facts in members.items()), key=lambda row: -sum(row[1:])),
    )


def kind_of(cause: str) -> str:
    """The cause without names, so that similar ones are counted together."""
    for word, kind in (
        ("expired", "a member's session expired"),
        ("did not", "a member did not answer in time"),
        ("joined", "a member joined"),
        ("left", "members left"),
        ("partition", "a topic changed"),
    ):
        if word in cause:
            return kind
    return cause or "unknown"


def offsets_at(events: Iterable[Event], at_ms: int) -> Offsets | None:
    """The offsets committed at a time: the last that are known from before it."""
    commits = film(events, 0, at_ms).commits
    known = [each for each in commits if each.at_ms <= at_ms]
    return known[-1] if known else None


def offsets_before_reset(events: Iterable[Event]) -> Offsets | None:
    """The offsets committed before somebody last moved or removed them."""
    commits = [each for each in film(events, 0, 1 << 62).commits if each.before]
    return commits[-1] if commits else None
