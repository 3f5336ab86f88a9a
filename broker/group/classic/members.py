"""The members of a group and what is counted over them: parked Joins, static members, votes.

Counts are kept as members come and go, so that n Joins of a rebalance cost n steps, not n squared.
"""

from __future__ import annotations

from collections import Counter

from moldau.broker.group.events import Protocols
from moldau.broker.group.writes import Purpose


class Member:
    """One member. `join_call` and `sync_call`: tokens of parked requests, None if there is none."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_call",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
        "session_timer_ms",
        "sync_call",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """Its first Join is still parked: it does not heartbeat, another timer watches it."""
        self.join_call: object | None = None
        self.sync_call: object | None = None
        self.session_deadline_ms = 0
        """Moved by heartbeats. The timer may be armed for an earlier time."""
        self.session_timer_ms: int | None = None
        """When the session timer fires; None: not armed, for parked members only."""

    @property
    def is_parked(self) -> bool:
        """It waits in Join or Sync, and therefore counts as alive."""
        return self.join_call is not None or self.sync_call is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for this protocol; empty if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


class Roster:
    """All members of a group, its leader, and member ids that were issued but not used yet."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.by_instance: dict[str, Member] = {}
        self.pending: set[str] = set()
        """Ids that were sent with MEMBER_ID_REQUIRED; the client has to join again with them."""
        self.leader: str | None = None
        self._joining = 0
        self._support: Counter[str] = Counter()
        """Number of members that support a protocol."""

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: Member) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)
        if member.join_call is not None:
            self._joining += 1

    def remove(self, member: Member) -> None:
        """If it was the leader, the next member becomes leader."""
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.by_id), None)
        self._count(member, -1)
        if member.join_call is not None:
            self._joining -= 1

    def replace(self, old: Member, new: Member) -> None:
        """The same static member under another id; leadership moves along."""
        leads = self.leader == old.member_id
        self.remove(old)
        self.add(new)
        if leads:
            self.leader = new.member_id

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        if member.protocols != protocols:
            self._count(member, -1)
            member.protocols = protocols
            self._count(member, 1)

    def park_join(self, member: Member, call: object) -> object | None:
        """Returns the call that was parked before, which must be answered now, or None."""
        replaced = self.take_join(member)
        member.join_call = call
        self._joining += 1
        return replaced

    def take_join(self, member: Member) -> object | None:
        call = member.join_call
        if call is not None:
            member.join_call = None
            self._joining -= 1
        return call

    def all_joined(self) -> bool:
        """All members are parked in Join, and no pending member is expected."""
        return self._joining == len(self.by_id) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined. False: no member did."""
        if self.leader is not None and self.by_id[self.leader].join_call is not None:
            return True
        for member in self.by_id.values():
            if member.join_call is not None:
                self.leader = member.member_id
                return True
        return False

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def supports(self, protocols: Protocols) -> bool:
        """True if every member supports one of these. Without members: if there is one at all."""
        everyone = len(self.by_id)
        return any(self._support[name] == everyone for name, _ in protocols)

    def vote(self) -> str:
        """Each member votes for its first protocol that all members support; most votes win.

        There always is one: `supports` is checked before a member is added or changed.
        """
        everyone = len(self.by_id)
        candidates = {name for name, count in self._support.items() if count == everyone}
        votes: Counter[str] = Counter()
        for member in self.by_id.values():
            for name, _ in member.protocols:
                if name in candidates:
                    votes[name] += 1
                    break
        return votes.most_common(1)[0][0]

    def _count(self, member: Member, by: int) -> None:
        for name in {name for name, _ in member.protocols}:  # a name may be listed twice
            count = self._support[name] + by
            if count:
                self._support[name] = count
            else:
                del self._support[name]


# --- why a classic group is written, beside the reasons that every group has ---


class SaveAssignments(Purpose, frozen=True):
    """The leader's assignments of this generation. Every parked Sync waits for it."""

    generation_id: int


class SaveReplacement(Purpose, frozen=True):
    """A static member has a new member id. The Join parked in `new` waits for it."""

    old: Member
    new: Member
    call: object
    supports_skip_assignment: bool
    leader_before: str
    """The leader in the answer if the client cannot skip the assignment: the new process of a
    leader must not act as the leader, or it would send assignments in a Stable group."""
