"""What a group wants stored, and why: one write at a time, later wishes share the next one.

One at a time keeps the order in which records reach the store, and turns a thousand static members
that restart at once into a few writes.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from broker.group.members import Member


class SaveGroup(Struct, frozen=True):
    """The group is new or has become Empty, or a failed write left the store in doubt. No request
    waits for it."""


class SaveAssignments(Struct, frozen=True):
    """The leader's assignments of this generation. Every parked Sync waits for it."""

    generation_id: int


class SaveReplacement(Struct, frozen=True):
    """A static member has a new member id. The Join parked in `new` waits for it."""

    old: Member
    new: Member
    call: object
    supports_skip_assignment: bool
    leader_before: str
    """The leader in the answer if the client cannot skip the assignment: the new process of a
    leader must not act as the leader, or it would send assignments in a Stable group."""


class DeleteGroup(Struct, frozen=True):
    """The group is to be removed."""

    call: object | None
    """None: the client was answered when the first attempt failed, this is another one."""


Purpose: TypeAlias = SaveGroup | SaveAssignments | SaveReplacement | DeleteGroup


class Writes:
    """The write in flight and what waits for the next one."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        """The token of the last write that was begun."""
        self.in_flight: list[Purpose] = []
        self.waiting: list[Purpose] = []

    def begin(self) -> int:
        """Start a write for everything that waits; returns its token."""
        self.revision += 1
        self.in_flight, self.waiting = self.waiting, []
        return self.revision

    def end(self, token: int) -> list[Purpose]:
        """The purposes of that write; none, if it is not the one in flight."""
        if token != self.revision:
            return []
        purposes, self.in_flight = self.in_flight, []
        return purposes

    def abandon(self) -> list[Purpose]:
        """Returns everything that was wanted. An outcome reported later is ignored."""
        purposes = self.in_flight + self.waiting
        self.in_flight, self.waiting = [], []
        return purposes
