"""The events of a group: frozen values that handlers make from requests.

`call` is the handler's reply handle, opaque here and never None. Each one gets exactly one `Reply`
effect, at once or later; the reply to a closed connection is dropped by the coordinator.
Metadata and assignments are kept for long: they are `bytes` of their own, not views of a frame.

How API versions map to fields (decided by the handlers; a group knows no versions):

    JoinGroup   v0    rebalance_timeout_ms = session_timeout_ms
                v4+   requires_known_member_id
                v5+   instance_id (None below)
                v8+   reason (None below)
                v9+   supports_skip_assignment
                below v7 a protocol_name of None is sent as ""
    SyncGroup   v3+   instance_id; v5+ protocol_type, protocol_name (None below: not compared)
    LeaveGroup  v0-2  one member; its error (`answer.members[0].error`, if `answer.error` is NONE)
                      is sent at the top level
                v3+   a list with an error each; v5+ reason

Heartbeats have no event (`Groups.heartbeat`). Describing and listing: `views.py`. Offset requests:
`commits.py`, `offsets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from moldau.broker.group.assign.job import Job
from moldau.broker.group.topics import TopicIdPartition
from moldau.broker.machine import Persisted, TimerFired

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The protocols that a member supports as pairs of name and metadata, preferred first."""


class Join(Struct, frozen=True):
    """JoinGroup. Answered by a `JoinAnswer`."""

    call: object
    member_id: str
    """Empty for a new member, or for the new process of a static one."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = True
    reason: str | None = None


class Sync(Struct, frozen=True):
    """SyncGroup. Answered by a `SyncAnswer`."""

    call: object
    member_id: str
    instance_id: str | None
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """Member id and assignment; ignored unless the member is the leader."""


class LeavingMember(Struct, frozen=True):
    member_id: str
    """Empty if an administrator removes a static member by its instance id."""
    instance_id: str | None = None
    reason: str | None = None


class Leave(Struct, frozen=True):
    """LeaveGroup. Answered by a `LeaveAnswer`, at once; one rebalance for all members."""

    call: object
    members: tuple[LeavingMember, ...]


class Delete(Struct, frozen=True):
    """DeleteGroups for this group, or its end once nothing is left (`commits.is_forgettable`).

    Answered by a `DeleteAnswer` once the group and its offsets are removed from the store. If the
    removal fails, it is retried until it succeeds, and the group stays Dead.
    """

    call: object


class ConsumerHeartbeat(Struct, frozen=True):
    """ConsumerGroupHeartbeat: join (epoch 0), stay, leave (-1), leave temporarily (-2).

    Answered by a `HeartbeatAnswer`. None stands for a field that has not changed.
    `modern.heartbeat.check_request` has checked the request before.
    """

    call: object
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    names: tuple[str, ...] | None = None
    """Topic names, unsorted."""
    pattern: str | None = None
    """An empty pattern removes the subscription."""
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None


class ShareHeartbeat(Struct, frozen=True):
    """ShareGroupHeartbeat: join (epoch 0), stay, leave (-1).

    Answered by a `HeartbeatAnswer`. None stands for a field that has not changed.
    `modern.share_heartbeat.check_request` has checked the request before.
    """

    call: object
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    names: tuple[str, ...] | None = None
    """Topic names, unsorted."""


class TopicsChanged(Struct, frozen=True):
    """Topics were created, deleted, or got more partitions."""

    names: frozenset[str]


class Assigned(Struct, frozen=True):
    """The outcome of an `Assign` effect."""

    job: Job
    targets: Mapping[str, frozenset[TopicIdPartition]] | None
    """The targets by member id; None if the job failed and has to be repeated."""


class Resolved(Struct, frozen=True):
    """The outcome of a `Resolve` effect: topics by pattern, or None if it failed."""

    matches: Mapping[str, frozenset[str]] | None
    of_all: bool
    """True if all topics were matched; otherwise these are additional ones."""


Request: TypeAlias = Join | Sync | Leave | Delete | ConsumerHeartbeat | ShareHeartbeat
Event: TypeAlias = Request | TimerFired | Persisted | TopicsChanged | Assigned | Resolved
