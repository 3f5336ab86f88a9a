"""Which topics an expression may stand for, where an authorizer is configured.

As in Kafka the topics are those that the member may describe that last said the expression. It says
it once: after a restart of the worker nothing is known of that, and the expression stands for what
it stood for before until a member says it again.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.modern.group import ConsumerGroup

MAX_KNOWN = 10_000  # expressions of groups; of more the oldest are as after a restart

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
        """Takes an expression and the name of a topic."""
        stood_for: dict[str, frozenset[str]] = {}
        if isinstance(group, ConsumerGroup):
            known = group.subscriptions.patterns.items()
            stood_for = {pattern: one.topics or frozenset() for pattern, one in known}

        def may_see(pattern: str, name: str) -> bool:
            sees = self._known.get((group_id, pattern))
            if sees is not None:
                return sees(name)
            return name in stood_for.get(pattern, ())

        return may_see
