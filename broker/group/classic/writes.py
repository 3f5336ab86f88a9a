"""Why a classic group is written, in addition to the reasons that every group has."""

from __future__ import annotations

from moldau.broker.group.classic.members import Member
from moldau.broker.group.writes import WriteReason


class SaveAssignments(WriteReason, frozen=True):
    """The leader's assignments of this generation are stored. Every parked Sync waits for this."""

    generation_id: int


class SaveReplacement(WriteReason, frozen=True):
    """A static member gets a new member id. The Join parked in `new` waits for this."""

    old: Member
    new: Member
    call: object
    supports_skip_assignment: bool
    leader_before: str
    """The leader in the answer to a client that cannot skip the assignment. The new process of a
    leader must not act as the leader, or it would send assignments in a Stable group."""
