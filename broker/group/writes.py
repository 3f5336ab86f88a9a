"""What a group wants stored, and why: one write at a time, what comes meanwhile goes into the next.

One at a time keeps the order in which records reach the store, and folds a thousand static members
that restart at once into a few writes.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from broker.group.members import Member


class SaveGroup(Struct, frozen=True):
    """The group is new or has become Empty, or the store may have another idea of it than we.
    Nobody waits for it."""


class SaveAssignments(Struct, frozen=True):
    """The leader's assignments of this generation. Everybody parked in Sync waits for it."""

    generation_id: int


class SaveReplacement(Struct, frozen=True):
    """A static member has a new member id. The Join parked in `new` waits for it."""

    old: Member
    new: Member
    call: object
    supports_skip_assignment: bool
    leader_before: str
    """What the answer names as leader when the client cannot skip the assignment: a leader's new
    process must not take itself for the leader, or it would send assignments nobody asked for."""


class DeleteGroup(Struct, frozen=True):
    """The group is to be forgotten."""

    call: object | None
    """None: whoever asked for it was told that it failed, and this is another try."""


Purpose: TypeAlias = SaveGroup | SaveAssignments | SaveReplacement | DeleteGroup


class Writes:
    """The write in flight and what waits for the next one."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        """The token of the last write that was begun."""
        self.in_flight: list[Purpose] = []
        self.waiting: list[Purpose] = []

    def begin(self) -> int:
        """Everything that waits goes into a write now. Its token."""
        self.revision += 1
        self.in_flight, self.waiting = self.waiting, []
        return self.revision

    def end(self, token: int) -> list[Purpose]:
        """What that write was for; nothing, if it is not the one in flight."""
        if token != self.revision:
            return []
        purposes, self.in_flight = self.in_flight, []
        return purposes

    def abandon(self) -> list[Purpose]:
        """Everything that was wanted. An outcome that is still reported means nothing any more."""
        purposes = self.in_flight + self.waiting
        self.in_flight, self.waiting = [], []
        return purposes
