"""Why a classic group is written, beside the reasons that every group has."""

from __future__ import annotations

from moldau.broker.group.classic.members import Member
from moldau.broker.group.writes import WriteReason


class SaveAssignments(WriteReason, frozen=True):
    """The leader's assignments of this generation. Every parked Sync waits for it."""

    generation_id: int


class SaveReplacement(WriteReason, frozen=True):
    """A static member has a new member id. The Join parked in `new` waits for it."""

    old: Member
    new: Member
    call: object
    supports_skip_assignment: bool
    leader_before: str
    """The leader in the answer if the client cannot skip the assignment: the new process of a
    leader must not act as the leader, or it would send assignments in a Stable group."""
