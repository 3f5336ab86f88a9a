"""Computes target assignments and the topics that expressions match, and tells groups of changed
topics. Small jobs end at once, larger ones run in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping

from moldau.broker import expressions
from moldau.broker.coordinator.time_slicer import TimeSlicer, Work
from moldau.broker.group.effects import Assign, Resolve
from moldau.broker.group.events import Assigned, Event, Resolved, TopicsChanged
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.groups import Groups
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.topics import TopicIdPartition, TopicLookup

MAX_KNOWN = 10_000  # expressions; beyond that the oldest are forgotten, as after a restart

MaySee = Callable[[str], bool]


class RegexVisibility:
    """Knows which topics an expression may match, where an authorizer is configured.

    As in Kafka, an expression matches topics that the member who last sent it may describe. Members
    send an expression once. After a restart of the worker it therefore matches what it matched
    before, until a member sends it again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], MaySee] = {}

    def note(self, group_id: str, pattern: str, may_see: MaySee) -> None:
        key = (group_id, pattern)
        self._known.pop(key, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = may_see

    def of_group(self, group_id: str, group: GroupBase | None) -> Callable[[str, str], bool]:
        """Returns a check of an expression and the name of a topic."""
        matched: dict[str, frozenset[str]] = {}
        if isinstance(group, ConsumerGroup):
            known = group.subscriptions.patterns.items()
            matched = {pattern: one.topics or frozenset() for pattern, one in known}

        def may_see(pattern: str, name: str) -> bool:
            sees = self._known.get((group_id, pattern))
            if sees is not None:
                return sees(name)
            return name in matched.get(pattern, ())

        return may_see


class AssignmentJobs:
    def __init__(
        self, submit: Callable[[str, Event], object], groups: Groups, topics: TopicLookup
    ) -> None:
        self._submit = submit
        self._groups = groups
        self._topics = topics
        self._slicer = TimeSlicer()
        self._changed_topics: set[str] = set()
        # Set where an authorizer is configured, as clients may not see all topics.
        self.visibility: RegexVisibility | None = None

    def assign(self, effect: Assign) -> None:
        job = effect.job
        report = self._reporter(job.group_id)

        def assigned(targets: Mapping[str, frozenset[TopicIdPartition]] | None) -> None:
            report(Assigned(job, targets))

        what = f"computing the target of group {job.group_id}"
        self._slicer.start(Work(what, job.steps(), assigned))

    def resolve(self, effect: Resolve) -> None:
        of_all = effect.names is None
        report = self._reporter(effect.name)

        def resolved(matches: Mapping[str, frozenset[str]] | None) -> None:
            report(Resolved(matches, of_all))

        may_see = None
        if self.visibility is not None:
            group = self._groups.by_id.get(effect.name)
            may_see = self.visibility.of_group(effect.name, group)
        names = self._topics.names() if effect.names is None else effect.names
        what = f"matching the expressions of group {effect.name}"
        steps = expressions.match_steps(effect.patterns, list(names), may_see)
        self._slicer.start(Work(what, steps, resolved))

    def _reporter(self, group_id: str) -> Callable[[Event], None]:
        """Reports to the machine that asked, if it is still there: another one has other facts."""
        asking = self._groups.by_id.get(group_id)

        def report(event: Event) -> None:
            if self._groups.by_id.get(group_id) is asking:
                self._submit(group_id, event)

        return report

    # --- topics ---

    def topic_changed(self, name: str) -> None:
        """A topic was created or deleted, or has more partitions."""
        if not self._changed_topics:
            asyncio.get_running_loop().call_soon(self._report_topics)
        self._changed_topics.add(name)

    def _report_topics(self) -> None:
        names, self._changed_topics = frozenset(self._changed_topics), set()
        what = "telling groups of changed topics"
        self._slicer.start(Work(what, self._tell_groups(TopicsChanged(names)), lambda _: None))

    def _tell_groups(self, event: TopicsChanged) -> Generator[None, None, None]:
        """One after the other, as each may compute a target."""
        for group_id in self._groups.concerned():
            self._submit(group_id, event)
            yield
