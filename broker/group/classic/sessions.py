"""Heartbeats keep a session alive. Without them the member is removed."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData
from moldau.broker.group.classic.rebalance import complete_if_ready, rebalance
from moldau.broker.group.effects import MemberChange
from moldau.broker.group.states import GroupState


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
