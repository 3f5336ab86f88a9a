"""The data of a classic group: its members, parked requests, sessions and stored record. Every
transition uses these.

The transitions are functions over `GroupData` in other modules; none is called from here.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.states import PREVIOUS
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    JoinAnswer,
    MemberChange,
    Persist,
    StateChanged,
    SyncAnswer,
)
from moldau.broker.group.events import Protocols
from moldau.broker.group.group_base import GroupBase, TimerKind, WriteReason, following
from moldau.broker.group.record import GroupRecord, MemberRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import Owners, owners_in


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


class Member:
    """One member. `join_call` and `sync_call` are the handles of its parked requests, or None."""

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
        """Its first Join is still parked: it does not heartbeat yet, and another timer watches
        it."""
        self.join_call: object | None = None
        self.sync_call: object | None = None
        self.session_deadline_ms = 0
        """Heartbeats move this deadline. The timer may be armed for an earlier time."""
        self.session_timer_ms: int | None = None
        """When the session timer fires. None if it is not armed: only parked members have none."""

    @property
    def is_parked(self) -> bool:
        """True while it waits in Join or Sync, and therefore counts as alive."""
        return self.join_call is not None or self.sync_call is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return its metadata for this protocol; empty if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


class Roster:
    """The members of a group, its leader, and member ids that were issued but not used yet.

    Parked Joins, static members and votes are counted as members come and go, so that the n Joins
    of a rebalance cost n steps, not n squared.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.by_instance: dict[str, Member] = {}
        self.pending: set[str] = set()
        """Ids that were sent with MEMBER_ID_REQUIRED. The client has to join again with its id."""
        self.leader: str | None = None
        self._joining = 0
        self._support: Counter[str] = Counter()
        """How many members support each protocol."""

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
        """Remove a member. If it was the leader, the next member becomes the leader."""
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.by_id), None)
        self._count(member, -1)
        if member.join_call is not None:
            self._joining -= 1

    def replace(self, old: Member, new: Member) -> None:
        """Give a static member another id. It stays the leader if it was."""
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
        """Park a Join. Returns the call that was parked before, which must be answered now, or
        None."""
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
        """True if all members are parked in Join and no pending member is expected."""
        return self._joining == len(self.by_id) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined. Returns False if no member did."""
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
        """True if every member supports one of these; without members, if there is one at all."""
        everyone = len(self.by_id)
        return any(self._support[name] == everyone for name, _ in protocols)

    def vote(self) -> str:
        """Each member votes for its first protocol that all members support; the most votes win.

        There is always one: `supports` is checked before a member is added or changed.
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


class GroupData(GroupBase):
    def __init__(
        self, group_id: str, identity: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> None:
        super().__init__(group_id, identity, config, ids, now_ms)
        self.min_generation = 0
        """Lower bound of the next generation: members may have seen generations that were not
        restored."""
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.awaited_syncs: set[str] = set()
        """Members of this generation that have not sent their Sync yet."""
        self.assignments: dict[str, bytes] | None = None
        """The leader's assignments, while they are being stored."""
        self.initial_since_ms: int | None = None
        """When a PreparingRebalance that started from Empty began; otherwise None."""
        self.joined_in_window = False
        """A member has been added since the initial delay was last armed."""

    # --- parked requests ---

    def answer_parked_join(self, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """Refuse the Join of this member, if one is parked."""
        call = self.roster.take_join(member)
        if call is not None:
            self.reply(call, JoinAnswer(error, member_id))

    def answer_parked_sync(self, member: Member, error: ErrorCode) -> None:
        """Refuse the Sync of this member, if one is parked."""
        call = member.sync_call
        if call is not None:
            member.sync_call = None
            self.reply(call, SyncAnswer(error))

    # --- state and members ---

    def move(self, state: GroupState, reason: str) -> None:
        previous = self.state
        if previous not in PREVIOUS[state]:
            raise AssertionError(f"group {self.group_id}: {previous} -> {state} ({reason})")
        self.state = state
        self.state_since_ms = self.now_ms
        self.effects.append(
            StateChanged(
                self.group_id, previous, state, self.generation_id, len(self.roster), reason
            )
        )

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE for a member. A static member must use its current member id."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            known = self.roster.by_instance.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.roster.by_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def remove(self, member: Member, change: MemberChange) -> None:
        """Remove a member. Its parked requests get UNKNOWN_MEMBER_ID: it has to join from scratch.

        The caller starts a rebalance afterwards.
        """
        self.answer_parked_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.answer_parked_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.remove(member)
        self.cancel_member_timers(member)
        self.report(change, member)

    def begin_next_generation(self) -> None:
        self.generation_id = following(self.generation_id, self.min_generation, self.now_ms)

    # --- sessions ---

    def renew_session(self, member: Member) -> None:
        """Restart the session: the member sent something, or its parked request is answered."""
        self.extend_session(member, member.session_timeout_ms)

    def cancel_member_timers(self, member: Member) -> None:
        self.cancel_session(member)
        if member.is_new:
            self.cancel(TimerKind.NEW_MEMBER, member.member_id)

    # --- what is stored ---

    def _is_durable_point(self) -> bool:
        if self.state is GroupState.COMPLETING_REBALANCE:
            return self.assignments is not None
        return self.state is GroupState.STABLE or self.state is GroupState.EMPTY

    def _persist(self, revision: int) -> Persist:
        record = self._record(revision)
        owners = Owners(None, partial(owners_in, record))
        return Persist(self.group_id, revision, self.identity, record, owners=owners)

    def _record(self, revision: int) -> GroupRecord:
        """Build the record from which the group is restored after a restart.

        While assignments are being stored, the record shows the Stable group that they will make.
        """
        becoming = self.assignments
        return GroupRecord(
            group_id=self.group_id,
            identity=self.identity,
            revision=revision,
            state=GroupState.STABLE if becoming is not None else self.state,
            state_since_ms=self.now_ms if becoming is not None else self.state_since_ms,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            members=tuple(
                MemberRecord(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    member.protocols,
                    member.assignment if becoming is None else becoming.get(member.member_id, b""),
                )
                for member in self.roster.by_id.values()
            ),
        )
