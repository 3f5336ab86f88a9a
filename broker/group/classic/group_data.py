"""The data of a classic group, its sessions, and its stored record. Every transition uses these.

The transitions are functions over `GroupData` in other modules; none is called from here.
"""

from __future__ import annotations

from functools import partial

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.members import Member, Roster
from moldau.broker.group.classic.states import PREVIOUS
from moldau.broker.group.config import GroupConfig, IdGenerator
from moldau.broker.group.effects import (
    JoinAnswer,
    MemberChange,
    Persist,
    StateChanged,
    SyncAnswer,
)
from moldau.broker.group.generations import following
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.record import GroupRecord, MemberRecord
from moldau.broker.group.states import GroupState
from moldau.broker.group.timers import TimerKind
from moldau.broker.group.views import Owners, owners_in


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
        deadline_ms = self.now_ms + member.session_timeout_ms
        member.session_deadline_ms = deadline_ms
        if member.session_timer_ms is None or member.session_timer_ms > deadline_ms:
            self.arm_session(member)

    def arm_session(self, member: Member) -> None:
        member.session_timer_ms = member.session_deadline_ms
        self.arm(TimerKind.SESSION, member.session_deadline_ms, member.member_id)

    def cancel_member_timers(self, member: Member) -> None:
        if member.session_timer_ms is not None:
            member.session_timer_ms = None
            self.cancel(TimerKind.SESSION, member.member_id)
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
