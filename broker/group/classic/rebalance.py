"""The two phases of a rebalance: collect the Joins, begin a generation.

rebalance ─▶ PreparingRebalance ── all have joined, or a timer ─▶ complete
                                        ├─ a member joined ─▶ CompletingRebalance (sync.py)
                                        ├─ only absent static members ─▶ wait once more
                                        └─ no member left ─▶ Empty
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData
from moldau.broker.group.classic.members import Member
from moldau.broker.group.effects import JoinAnswer, JoinedMember, MemberChange
from moldau.broker.group.states import GroupState
from moldau.broker.group.timers import TimerKind
from moldau.broker.group.writes import SaveGroup


def rebalance(group: GroupData, reason: str) -> None:
    """Start a rebalance, or complete the one in preparation if it was only waiting for this
    change."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_if_ready(group)
    else:
        prepare(group, reason)


def prepare(group: GroupData, reason: str) -> None:
    group.cancel(TimerKind.SYNC)
    group.awaited_syncs.clear()
    if group.state is GroupState.COMPLETING_REBALANCE:
        refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
    was_empty = group.state is GroupState.EMPTY
    group.move(GroupState.PREPARING_REBALANCE, reason)
    if was_empty:
        # Members of a new group join one after the other. Without this wait, each would cause a
        # rebalance.
        group.initial_since_ms = group.now_ms
        group.joined_in_window = False
        delay_ms = group.config.initial_rebalance_delay_ms
        if delay_ms > 0:
            group.arm(TimerKind.INITIAL_DELAY, group.now_ms + delay_ms)
        else:
            complete(group)
    elif group.roster.all_joined():
        complete(group)
    else:
        arm_join_timer(group)


def refuse_syncs(group: GroupData, error: ErrorCode) -> None:
    """Answer parked Syncs with an error: the assignments of this generation are void."""
    group.assignments = None
    for member in group.roster.by_id.values():
        if member.sync_call is not None:
            group.answer_parked_sync(member, error)
            group.renew_session(member)


def arm_join_timer(group: GroupData) -> None:
    group.arm(TimerKind.JOIN, group.now_ms + group.roster.rebalance_timeout_ms())


def complete_if_ready(group: GroupData) -> None:
    """Complete once all members have joined. In a group that was Empty the initial delay
    decides."""
    if group.state is not GroupState.PREPARING_REBALANCE or not group.roster.all_joined():
        return
    if group.initial_since_ms is None or not len(group.roster):
        complete(group)


def initial_delay_over(group: GroupData) -> None:
    """Wait again if members joined meanwhile, up to the rebalance timeout."""
    assert group.initial_since_ms is not None
    until_ms = group.initial_since_ms + group.roster.rebalance_timeout_ms()
    remaining_ms = until_ms - group.now_ms
    if group.joined_in_window and remaining_ms > 0:
        group.joined_in_window = False
        delay_ms = min(group.config.initial_rebalance_delay_ms, remaining_ms)
        group.arm(TimerKind.INITIAL_DELAY, group.now_ms + delay_ms)
    else:
        complete(group)


def complete(group: GroupData) -> None:
    """Continue with the members that joined. Absent static members are kept, as that is the purpose
    of static membership; they are removed by their session timeout or by the wait for their
    Sync."""
    group.cancel(TimerKind.INITIAL_DELAY)
    group.cancel(TimerKind.JOIN)
    group.initial_since_ms = None
    absent = [
        member
        for member in group.roster.by_id.values()
        if member.join_call is None and member.instance_id is None
    ]
    for member in absent:
        group.remove(member, MemberChange.EXPIRED)
    if not len(group.roster):
        become_empty(group)
    elif group.roster.elect_joined_leader():
        begin_generation(group)
    else:
        arm_join_timer(group)


def become_empty(group: GroupData) -> None:
    group.begin_next_generation()
    group.protocol_name = None
    group.move(GroupState.EMPTY, "no members left")
    group.store(SaveGroup())


def begin_generation(group: GroupData) -> None:
    roster = group.roster
    group.begin_next_generation()
    group.protocol_name = roster.vote()
    group.assignments = None
    group.move(GroupState.COMPLETING_REBALANCE, "members have joined")
    group.awaited_syncs = set(roster.by_id)
    for member in roster.by_id.values():
        call = roster.take_join(member)
        if call is not None:
            group.reply(call, current_generation(group, member))
        if member.is_new:
            group.cancel_member_timers(member)
            member.is_new = False
        group.renew_session(member)
    group.arm(TimerKind.SYNC, group.now_ms + roster.rebalance_timeout_ms())


def current_generation(
    group: GroupData, member: Member, *, skip_assignment: bool = False, leader: str | None = None
) -> JoinAnswer:
    """Build the answer to a member of this generation. Only the leader gets the list of members."""
    leads = leader is None and group.roster.leader == member.member_id
    return JoinAnswer(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader if leader is not None else group.roster.leader or "",
        members=joined_members(group) if leads else (),
        skip_assignment=skip_assignment and leads,
    )


def joined_members(group: GroupData) -> tuple[JoinedMember, ...]:
    name = group.protocol_name
    return tuple(
        JoinedMember(member.member_id, member.instance_id, member.metadata(name))
        for member in group.roster.by_id.values()
    )
