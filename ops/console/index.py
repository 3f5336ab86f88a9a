"""A snapshot arranged for pages: which groups read a topic, names in order. Pure.

Thousands of topics and groups are a pass over all rows; lags are computed only for the names on a
page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from moldau.broker.metrics.document import GroupRow, PartitionRow
from moldau.broker.placement import SLOTS, slot_of
from moldau.ops.console.inputs import parse_number
from moldau.ops.http.lag import Lags, worst
from moldau.ops.http.snapshot import Snapshot

T = TypeVar("T")

PER_PAGE = 100
GROUPS_OF_TOPIC = 5  # named in the list of topics


class TopicSummary(NamedTuple):
    name: str
    partitions: int
    size: int
    records: int
    group_count: int
    groups: list[tuple[str, int | None]]  # some of those that committed offsets, and their lag


class GroupSummary(NamedTuple):
    name: str
    state: str
    members: int
    lag: int | None  # None: not known
    seconds: float | None
    topics: list[str]
    owner: int


class TopicGroup(NamedTuple):
    """A group that has committed offsets of a topic."""

    name: str
    state: str
    members: int
    lag: int | None
    seconds: float | None


class Slot(NamedTuple):
    slot: int
    owner: int
    groups: int
    members: int
    heat: int  # 0 to 5


class Page(NamedTuple):
    """A part of a long list."""

    number: int
    pages: int
    total: int
    names: list[str]
    q: str


class Index:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._documents = [document for document in snapshot.workers if document is not None]

    @cached_property
    def lags(self) -> Lags:
        return Lags(self.snapshot)

    @cached_property
    def partitions(self) -> dict[str, list[PartitionRow]]:
        """The rows of each topic."""
        found: dict[str, list[PartitionRow]] = {}
        for document in self._documents:
            for row in document.partitions:
                rows = found.get(row.topic)
                if rows is None:
                    found[row.topic] = [row]
                else:
                    rows.append(row)
        return found

    @cached_property
    def groups(self) -> dict[str, tuple[int, GroupRow]]:
        """Groups by name, with the worker that coordinates them."""
        return {
            group.group: (worker, group)
            for worker, document in enumerate(self.snapshot.workers)
            if document is not None
            for group in document.groups
        }

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """The groups that have committed offsets of a topic, by topic."""
        found: dict[str, dict[str, None]] = {}
        for _, group in self.groups.values():
            last = None
            for committed in group.committed:
                if committed.topic != last:  # partitions of a topic mostly come together
                    last = committed.topic
                    found.setdefault(last, {})[group.group] = None
        return {topic: sorted(names) for topic, names in found.items()}

    @cached_property
    def topic_names(self) -> list[str]:
        return sorted(self.partitions)

    @cached_property
    def group_names(self) -> list[str]:
        return sorted(self.groups)

    # --- what pages show ---

    def topic(self, name: str) -> TopicSummary:
        rows = self.partitions[name]
        readers = self.readers.get(name, [])
        return TopicSummary(
            name,
            len(rows),
            sum(row.size for row in rows),
            sum(row.records for row in rows),
            len(readers),
            [(group, self._lag(group, name)[0]) for group in readers[:GROUPS_OF_TOPIC]],
        )

    def group(self, name: str) -> GroupSummary:
        owner, group = self.groups[name]
        topics = sorted({committed.topic for committed in group.committed})
        lag, seconds = self._lag(name)
        return GroupSummary(name, group.state, group.members, lag, seconds, topics, owner)

    def groups_of(self, topic: str, names: Iterable[str]) -> list[TopicGroup]:
        found = []
        for name in names:
            _, group = self.groups[name]
            found.append(TopicGroup(name, group.state, group.members, *self._lag(name, topic)))
        return found

    def ages(self, group: str) -> dict[tuple[str, int], float | None]:
        """The age of the first record that the group has not committed, by topic and partition."""
        if group not in self.groups:
            return {}
        rows = self.lags.of(self.groups[group][1])
        return {(each.topic, each.partition): each.seconds for each in rows}

    def _lag(self, group: str, topic: str | None = None) -> tuple[int | None, float | None]:
        """Lag in records and seconds, in one topic or in all."""
        found = [
            each
            for each in self.lags.of(self.groups[group][1])
            if topic is None or each.topic == topic
        ]
        records = [each.records for each in found]
        whole = None if None in records else sum(each or 0 for each in records)
        return whole, worst(each.seconds for each in found)

    # --- all together ---

    @cached_property
    def totals(self) -> dict[str, int]:
        rows = [row for document in self._documents for row in document.partitions]
        return {
            "topics": len(self.partitions),
            "partitions": len(rows),
            "bytes": sum(row.size for row in rows),
            "groups": len(self.groups),
            "members": sum(group.members for _, group in self.groups.values()),
        }

    @cached_property
    def slots(self) -> list[Slot]:
        """The slots of groups: the worker that owns each, its groups and their members."""
        groups, members = [0] * SLOTS, [0] * SLOTS
        for name, (_, group) in self.groups.items():
            slot = slot_of(name)
            groups[slot] += 1
            members[slot] += group.members
        most = max(members) or 1
        workers = max(len(self.snapshot.workers), 1)
        return [
            Slot(slot, slot % workers, groups[slot], members[slot],
                 0 if not members[slot] else 1 + round(4 * members[slot] / most))
            for slot in range(SLOTS)
        ]  # fmt: skip


def page_of(names: Sequence[str], q: str, number: str) -> Page:
    """A page of the names that contain `q`. `number`: as the URL has it."""
    wanted = q.lower()
    found = [name for name in names if wanted in name.lower()] if wanted else names
    pages = max(-(-len(found) // PER_PAGE), 1)
    at = min(max(parse_number(number) or 1, 1), pages)
    return Page(at, pages, len(found), list(found[(at - 1) * PER_PAGE : at * PER_PAGE]), q)
