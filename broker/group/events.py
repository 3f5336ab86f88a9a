"""What can happen to a group. Frozen values; a handler makes them from requests.

`call` is the handler's token for the request, opaque here. Each one is answered by exactly one
`Reply` effect, at once or later; the worker drops a reply whose connection is gone. It is never
None. Metadata and assignments are kept for long: `bytes` of their own, not views of a frame.

How versions of the protocol map to fields (decided by the handler, a group knows no versions):

    JoinGroup   v0    rebalance_timeout_ms = session_timeout_ms
                v4+   requires_known_member_id
                v5+   instance_id (None below)
                v8+   reason (None below)
                v9+   supports_skip_assignment
                below v7 a protocol_name of None is sent as ""
    SyncGroup   v3+   instance_id; v5+ protocol_type, protocol_name (None below: not compared)
    Heartbeat   v3+   instance_id
    LeaveGroup  v0-2  one member; its error (`answer.members[0].error`, if `answer.error` is 0)
                      is sent at the top
                v3+   a list, with an error each; v5+ reason

Describing and listing are reads: `views.py`. Offset requests: `commits.py`, `offsets.py`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from broker.errors import ErrorCode
from broker.group.timers import TimerKey

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The protocols a member supports, the preferred first: name and metadata as they came."""


class Join(Struct, frozen=True):
    """JoinGroup. Answered by a `JoinAnswer`."""

    call: object
    member_id: str
    """Empty: a new member, or the new process of a static one."""
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
    """Member id and assignment; only the leader's are looked at."""


class LeavingMember(Struct, frozen=True):
    member_id: str
    """Empty with an instance id: an administrator removes that static member."""
    instance_id: str | None = None
    reason: str | None = None


class Leave(Struct, frozen=True):
    """LeaveGroup. Answered by a `LeaveAnswer`, at once; one rebalance for all of them."""

    call: object
    members: tuple[LeavingMember, ...]


class Delete(Struct, frozen=True):
    """DeleteGroups for this group, or its end once nothing is left (`commits.is_forgettable`).

    Answered by a `DeleteAnswer` once the store has forgotten the group and its offsets, or has
    failed to: then it is tried again until it succeeds, and the group is Dead meanwhile.
    """

    call: object


class TimerFired(Struct, frozen=True):
    """An armed timer is due. One that was cancelled or moved meanwhile does no harm."""

    key: TimerKey


class Persisted(Struct, frozen=True):
    """The outcome of the `Persist` effect with this token. Each one gets exactly one.

    `error` is what members that wait for the write get: COORDINATOR_NOT_AVAILABLE when it failed or
    its outcome is unknown.
    """

    token: int
    error: ErrorCode = ErrorCode.NONE


Request: TypeAlias = Join | Sync | Leave | Delete
Event: TypeAlias = Request | TimerFired | Persisted
