"""The writes of a group and their reasons. There is one write at a time; later ones share the next.

This preserves the order in which records reach the store, and turns a thousand static members that
restart at once into a few writes.
"""

from __future__ import annotations

from msgspec import Struct


class WriteReason(Struct, frozen=True):
    """Why the group is written. A protocol adds its own."""


class SaveGroup(WriteReason, frozen=True):
    """The group is new or has become Empty, or a failed write left the store in doubt. No request
    waits for this."""


class DeleteGroup(WriteReason, frozen=True):
    """The group is to be removed."""

    call: object | None
    """None on a retry: the client was answered when the first attempt failed."""


class Writes:
    """The write in flight and the reasons for the next one."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        """The revision of the last write that was begun."""
        self.in_flight: list[WriteReason] = []
        self.waiting: list[WriteReason] = []

    def begin(self) -> int:
        """Start a write for everything that waits; returns its revision."""
        self.revision += 1
        self.in_flight, self.waiting = self.waiting, []
        return self.revision

    def end(self, revision: int) -> list[WriteReason]:
        """Return the reasons of that write; none if it is not the one in flight."""
        if revision != self.revision:
            return []
        reasons, self.in_flight = self.in_flight, []
        return reasons

    def abandon(self) -> list[WriteReason]:
        """Return all reasons. An outcome that is reported later is ignored."""
        reasons = self.in_flight + self.waiting
        self.in_flight, self.waiting = [], []
        return reasons
