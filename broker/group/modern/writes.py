"""The writes of a group of the consumer protocol: its head, and the members that changed.

A write that failed is not undone: memory stays ahead of the store, and the next write includes it.
Members that waited for it get an error that clients retry, and come back with the epoch they know.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.group.effects import Answer
from moldau.broker.group.modern.members import Member
from moldau.broker.group.topics import PartitionEpochs
from moldau.broker.group.writes import WriteReason


class PendingAnswer(WriteReason, frozen=True):
    """A member waits for this answer until the state that it tells is stored."""

    member_id: str
    call: object
    answer: Answer
    refusal: Answer
    """The answer if it cannot be stored."""
    epoch: int
    assigned: PartitionEpochs | None
    """The partitions that the answer assigns; None if they are not new."""


class Unsaved:
    """The members whose changes are not stored yet."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        """The members of the next write, in order."""
        self.in_flight: dict[str, None] = {}
        self.whole = False
        """Replace everything that is stored: the group was converted, or the store lost data."""
        self.whole_in_flight = False

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.changed or member_id in self.in_flight

    def begin(self, members: Mapping[str, Member]) -> tuple[Mapping[str, Member | None], bool]:
        if self.whole:
            self.changed = dict.fromkeys(members)
        self.in_flight, self.changed = self.changed, {}
        self.whole_in_flight, self.whole = self.whole, False
        return {one: members.get(one) for one in self.in_flight}, self.whole_in_flight

    def end(self, *, stored: bool) -> None:
        if not stored:
            self.changed = {**self.in_flight, **self.changed}
            self.whole = self.whole or self.whole_in_flight
        self.in_flight, self.whole_in_flight = {}, False
