"""What every transition of a classic group uses: its data, effects, timers and writes.

The transitions are functions over `Core` in modules of their own; none is called from here.
"""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import (
    Answer,
    ArmTimer,
    CancelTimer,
    Effect,
    JoinAnswer,
    MemberChange,
    MemberChanged,
    Persist,
    Reply,
    StateChanged,
    SyncAnswer,
)
from broker.group.members import Member, Roster
from broker.group.record import GroupRecord, MemberRecord
from broker.group.states import PREVIOUS, GroupState
from broker.group.timers import TimerKey, TimerKind
from broker.group.writes import DeleteGroup, Purpose, Writes


class Core:
    def __init__(
        self, group_id: str, identity: str, config: GroupConfig, ids: IdGenerator, now_ms: int
    ) -> None:
        self.group_id = group_id
        self.identity = identity
        self.config = config
        self.ids = ids
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.awaited_syncs: set[str] = set()
        """Members of this generation that have not sent their Sync yet."""
        self.assignments: dict[str, bytes] | None = None
        """The leader's, while they are being stored."""
        self.initial_since_ms: int | None = None
        """When a PreparingRebalance that started from Empty began; otherwise None."""
        self.joined_in_window = False
        """A member has been added since the initial delay was last armed."""
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self._writes = Writes()
        self._armed: dict[TimerKey, int] = {}
        self._extended: set[TimerKey] = set()
        """Timers that fired late and were armed once more."""

    # --- answers ---

    def reply(self, call: object, answer: Answer) -> None:
        self.effects.append(Reply(call, answer))

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
        """NONE if this is a member. A static member must use its current member id."""
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

    def report(self, change: MemberChange, member: Member) -> None:
        self.effects.append(
            MemberChanged(
                self.group_id,
                change,
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                len(self.roster),
            )
        )

    def remove(self, member: Member, change: MemberChange) -> None:
        """Remove a member. Its parked requests get UNKNOWN_MEMBER_ID: it has to join from scratch.

        The caller starts a rebalance afterwards.
        """
        self.answer_parked_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.answer_parked_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.remove(member)
        self.cancel_member_timers(member)
        self.report(change, member)

    # --- timers ---

    def arm(self, kind: TimerKind, at_ms: int, member_id: str = "") -> None:
        key = TimerKey(self.group_id, kind, member_id)
        self._extended.discard(key)
        self._armed[key] = at_ms
        self.effects.append(ArmTimer(key, at_ms))

    def cancel(self, kind: TimerKind, member_id: str = "") -> None:
        key = TimerKey(self.group_id, kind, member_id)
        if self._armed.pop(key, None) is not None:
            self._extended.discard(key)
            self.effects.append(CancelTimer(key))

    def cancel_all_timers(self) -> None:
        self.effects.extend(CancelTimer(key) for key in self._armed)
        self._armed.clear()
        self._extended.clear()

    def is_due(self, key: TimerKey) -> bool:
        """True if a timer that fired is to be acted on; it is then no longer armed."""
        at_ms = self._armed.get(key)
        if at_ms is None:
            return False
        if self.now_ms < at_ms:  # the event loop's clock is coarser than ours
            self.effects.append(ArmTimer(key, at_ms))
            return False
        late_ms = self.now_ms - at_ms
        if late_ms > self.config.late_timer_ms and key not in self._extended:
            self.arm(key.kind, self.now_ms + self.config.late_timer_grace_ms, key.member_id)
            self._extended.add(key)
            return False
        del self._armed[key]
        self._extended.discard(key)
        return True

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

    # --- writes ---

    def store(self, purpose: Purpose) -> None:
        """Store the group as it is now, or as it is when the write in flight has ended."""
        self._writes.waiting.append(purpose)
        self.begin_write()

    def store_later(self) -> None:
        """After a failed write that no other write follows."""
        self.arm(TimerKind.PERSIST_RETRY, self.now_ms + self.config.persist_retry_ms)

    def begin_write(self) -> None:
        """Start a write if one is wanted and none is in flight.

        In mid-rebalance there is nothing to write: what was wanted is out of date, and the end of
        the rebalance brings a write of its own.
        """
        writes = self._writes
        if writes.in_flight or not writes.waiting:
            return
        if any(type(purpose) is DeleteGroup for purpose in writes.waiting):
            self.effects.append(Persist(self.group_id, self.identity, writes.begin(), None))
        elif self._is_durable_point():
            token = writes.begin()
            record = self._record(token)
            self.effects.append(Persist(self.group_id, self.identity, token, record))
        else:
            writes.waiting.clear()

    @property
    def is_writing(self) -> bool:
        return bool(self._writes.in_flight)

    @property
    def is_at_rest(self) -> bool:
        """No write in flight and no timer armed: nothing will happen by itself."""
        return not self.is_writing and not self._armed

    def end_write(self, token: int) -> list[Purpose]:
        return self._writes.end(token)

    def abandon_writes(self) -> list[Purpose]:
        return self._writes.abandon()

    def continue_revisions(self, revision: int) -> None:
        self._writes = Writes(revision)

    def _is_durable_point(self) -> bool:
        if self.state is GroupState.COMPLETING_REBALANCE:
            return self.assignments is not None
        return self.state is GroupState.STABLE or self.state is GroupState.EMPTY

    def _record(self, revision: int) -> GroupRecord:
        """The group as it is restored after a restart.

        While assignments are being stored, that is the Stable group that they make it.
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
