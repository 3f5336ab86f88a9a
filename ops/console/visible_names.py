"""Limits snapshots, their history and group events to what a user may see.

Workers decide, by the user's ACLs (broker/private/table.py). Processes, the store and
rates of requests are for those who may describe the cluster. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import msgspec

from moldau.broker.metrics.document import ClientRow, Document, GroupRow
from moldau.broker.private.table import VisibleNames
from moldau.ops.console.history import POINTS, History
from moldau.ops.console.index import Index
from moldau.ops.http.snapshot import Snapshot, Status
from moldau.ops.operations.group_history import Event


class Visible(NamedTuple):
    topics: Set[str]
    groups: Set[str]
    cluster: bool = False  # whether the user may describe the cluster
    everything: bool = False  # whatever its name


NOTHING = Visible(frozenset(), frozenset())


def merged(answers: Sequence[VisibleNames]) -> Visible:
    """Merge the answers of workers; groups of a worker that did not answer are not seen."""
    return Visible(
        {name for each in answers for name in each.topics},
        {name for each in answers for name in each.groups},
        cluster=bool(answers) and all(each.cluster for each in answers),
        everything=bool(answers) and all(each.everything for each in answers),
    )


def visible_snapshot(snapshot: Snapshot, visible: Visible) -> Snapshot:
    if visible.everything:
        return snapshot
    status = snapshot.status
    if status is not None and not visible.cluster:
        status = Status([], {})
    return msgspec.structs.replace(
        snapshot,
        status=status,
        workers=[each and _visible_document(each, visible) for each in snapshot.workers],
        routers=[each and Document(is_ready=each.is_ready) for each in snapshot.routers],
    )


def _visible_document(document: Document, visible: Visible) -> Document:
    return Document(
        is_ready=document.is_ready,
        partitions=[row for row in document.partitions if row.topic in visible.topics],
        groups=[
            _visible_group(group, visible.topics)
            for group in document.groups
            if group.group in visible.groups
        ],
        clients=[
            _visible_client(client, visible.topics)
            for client in document.clients
            if client.resource.get("group_id") in visible.groups
        ],
    )


def _visible_client(client: ClientRow, topics: Set[str]) -> ClientRow:
    """Who may describe a group sees what its members measure, but for hidden topics."""
    values = [
        value
        for value in client.values
        if all(name != "topic" or text in topics for name, text in value.attributes)
    ]
    return msgspec.structs.replace(client, values=values)


def _visible_group(group: GroupRow, topics: Set[str]) -> GroupRow:
    """Who may describe a group sees its offsets of topics that it may describe."""
    committed = [row for row in group.committed if row.topic in topics]
    if len(committed) == len(group.committed):
        return group
    return msgspec.structs.replace(group, committed=committed)


def visible_events(events: list[Event], visible: Visible) -> list[Event]:
    """Events of a group that may be described, without what they say of hidden topics."""
    if visible.everything:
        return events
    return [each._replace(facts=_visible_facts(each.facts, visible.topics)) for each in events]


def _visible_facts(facts: dict[str, Any], topics: Set[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "owners" in facts:
        changes["owners"] = [
            owner | {"topics": _among(topics, owner.get("topics", {}))} for owner in facts["owners"]
        ]
    if "offsets" in facts:
        changes["offsets"] = _among(topics, facts["offsets"])
    return facts | changes if changes else facts


def _among(topics: Set[str], by_topic: dict[str, Any]) -> dict[str, Any]:
    return {topic: facts for topic, facts in by_topic.items() if topic in topics}


class Shown:
    """Keeps the snapshot and the index of a user: pages that ask again get the same."""

    def __init__(self) -> None:
        self._source: tuple[Snapshot, Visible] | None = None
        self._snapshot: Snapshot | None = None
        self._index: Index | None = None

    def snapshot(self, snapshot: Snapshot, visible: Visible) -> Snapshot:
        source = self._source
        is_same = source is not None and source[0] is snapshot and source[1] == visible
        if self._snapshot is None or not is_same:
            self._source = snapshot, visible
            self._snapshot = visible_snapshot(snapshot, visible)
        return self._snapshot

    def index(self, snapshot: Snapshot) -> Index:
        if self._index is None or self._index.snapshot is not snapshot:
            self._index = Index(snapshot)
        return self._index


class VisibleHistory:
    """The part of `History` that a user may see who does not see everything."""

    def __init__(self, history: History, visible: Visible) -> None:
        self._history = history
        self._visible = visible

    def lags(self, group: str) -> list[tuple[int, int]]:
        """They are sums over all topics of the group: for who may see all of them."""
        visible = self._visible
        is_visible = (
            group in visible.groups and self._history.topics_of.get(group, set()) <= visible.topics
        )
        return self._history.lags(group) if is_visible else []

    def record_rates(self, topic: str | None = None, most: int = POINTS) -> list[float]:
        if topic is None:
            return self._history.record_rates(among=self._visible.topics)
        return self._history.record_rates(topic, most) if topic in self._visible.topics else []

    def request_rates(self) -> list[float]:
        return self._history.request_rates() if self._visible.cluster else []
