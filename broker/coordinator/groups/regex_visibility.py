"""Which topics an expression may match, where an authorizer is configured.

As in Kafka, an expression matches topics that the member who last sent it may describe. Members
send an expression once. After a restart of the worker it therefore matches what it matched before,
until a member sends it again.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.modern.group import ConsumerGroup

MAX_KNOWN = 10_000  # expressions; beyond that the oldest are forgotten, as after a restart

MaySee = Callable[[str], bool]


class RegexVisibility:
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
