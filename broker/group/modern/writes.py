"""What a group of the consumer protocol stores: its head, and the members that changed.

A write that failed is not taken back: memory stays ahead of the store, and is stored with the next
one. Who waited for it gets an error that clients retry, and comes back in the epoch it knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.group.effects import Answer
from moldau.broker.group.modern.members import Member
from moldau.broker.group.topics import Place
from moldau.broker.group.writes import WriteReason


class PendingAnswer(WriteReason, frozen=True):
    """A member waits for this answer until what it says is stored."""

    member_id: str
    call: object
    answer: Answer
    refusal: Answer
    """If it cannot be stored."""
    epoch: int
    assigned: Mapping[Place, int] | None
    """What the answer assigns to it; None: nothing new."""


class Unsaved:
    """The members whose changes are not stored yet."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        """For the next write, in order."""
        self.in_flight: dict[str, None] = {}
        self.whole = False
        """All that is stored is to be replaced: the group was converted, or the store lost some."""
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
