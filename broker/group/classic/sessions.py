"""How members stay and go: Heartbeat, sessions that expire, LeaveGroup; and how a group ends: it is
deleted, or its coordinator unloads it.
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData, Roster
from moldau.broker.group.classic.join import complete_if_ready, rebalance
from moldau.broker.group.effects import DeleteAnswer, LeaveAnswer, LeftMember, MemberChange
from moldau.broker.group.events import Delete, Leave, LeavingMember
from moldau.broker.group.group_base import DeleteGroup, SaveGroup, TimerKind
from moldau.broker.group.states import GroupState


def leave(group: GroupData, event: Leave) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, LeaveAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    before = len(group.roster)
    left = tuple(
        LeftMember(leaving.member_id, leaving.instance_id, _remove(group, leaving))
        for leaving in event.members
    )
    group.reply(event.call, LeaveAnswer(ErrorCode.NONE, left))
    gone = before - len(group.roster)
    if gone:
        reasons = {leaving.reason for leaving in event.members if leaving.reason}
        who = "1 member" if gone == 1 else f"{gone} members"
        rebalance(group, f"{who} left ({'; '.join(sorted(reasons)) or 'no reason given'})")
    else:
        complete_if_ready(group)  # a pending member that left is no longer waited for


def _remove(group: GroupData, leaving: LeavingMember) -> ErrorCode:
    roster = group.roster
    if not leaving.member_id:
        instance = leaving.instance_id
        member = roster.by_instance.get(instance) if instance is not None else None
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        group.remove(member, MemberChange.LEFT)
    elif leaving.member_id in roster.pending:
        roster.pending.remove(leaving.member_id)
        group.cancel(TimerKind.PENDING_MEMBER, leaving.member_id)
    else:
        error = group.check_member(leaving.member_id, leaving.instance_id)
        if error is not ErrorCode.NONE:
            return error
        group.remove(roster.by_id[leaving.member_id], MemberChange.LEFT)
    return ErrorCode.NONE


def delete(group: GroupData, event: Delete) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, DeleteAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif group.state is not GroupState.EMPTY:
        group.reply(event.call, DeleteAnswer(ErrorCode.NON_EMPTY_GROUP))
    else:
        group.roster.pending.clear()
        group.cancel_all_timers()
        group.move(GroupState.DEAD, "deleted")
        group.store(DeleteGroup(event.call))


def saved(group: GroupData, error: ErrorCode) -> None:
    """Retry a write that failed. Otherwise a restart would restore an older state, for example with
    members that have left, and wait for them."""
    if error is not ErrorCode.NONE and group.state is not GroupState.DEAD:
        group.store_later()


def retry_timer_fired(group: GroupData) -> None:
    """Nothing is stored during a rebalance: its end writes the group anyway."""
    group.store(DeleteGroup(None) if group.state is GroupState.DEAD else SaveGroup())


def unload(group: GroupData) -> None:
    """Give the group up to another worker: parked requests get NOT_COORDINATOR."""
    for member in group.roster.by_id.values():
        group.answer_parked_join(member, ErrorCode.NOT_COORDINATOR, member.member_id)
        group.answer_parked_sync(member, ErrorCode.NOT_COORDINATOR)
    for reason in group.abandon_writes():
        if isinstance(reason, DeleteGroup) and reason.call is not None:
            group.reply(reason.call, DeleteAnswer(ErrorCode.NOT_COORDINATOR))
    group.cancel_all_timers()
    if group.state is not GroupState.DEAD:
        group.move(GroupState.DEAD, "given up")
    group.roster = Roster()


def heartbeat(
    group: GroupData, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
) -> ErrorCode:
    """Move the session deadline. There are no effects: the armed timer checks the deadline
    itself."""
    member = group.roster.by_id.get(member_id)
    if member is None or instance_id is not None:
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        member = group.roster.by_id[member_id]
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    member.session_deadline_ms = now_ms + member.session_timeout_ms
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def session_timer_fired(group: GroupData, member_id: str) -> None:
    member = group.roster.by_id[member_id]
    member.session_timer_ms = None
    if member.is_parked:
        return  # it waits for an answer, which restarts its session
    if member.session_deadline_ms > group.now_ms:
        group.arm_session(member)
        return
    group.remove(member, MemberChange.EXPIRED)
    rebalance(group, f"session of member {member_id} expired")


def new_member_timer_fired(group: GroupData, member_id: str) -> None:
    group.remove(group.roster.by_id[member_id], MemberChange.EXPIRED)
    rebalance(group, f"first join of member {member_id} took too long")


def pending_timer_fired(group: GroupData, member_id: str) -> None:
    group.roster.pending.remove(member_id)
    complete_if_ready(group)
