"""JoinGroup of new members, pending members, known members and restarted static members; and the
rebalance that follows: collect the Joins, begin a generation.

rebalance ─▶ PreparingRebalance ── all have joined, or a timer ─▶ complete
                                        ├─ a member joined ─▶ CompletingRebalance (sync.py)
                                        ├─ only absent static members ─▶ wait once more
                                        └─ no member left ─▶ Empty
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData, Member, SaveReplacement
from moldau.broker.group.config import GroupConfig
from moldau.broker.group.effects import JoinAnswer, JoinedMember, MemberChange
from moldau.broker.group.events import Join
from moldau.broker.group.group_base import SaveGroup, TimerKind
from moldau.broker.group.states import GroupState


def check_request(config: GroupConfig, event: Join) -> ErrorCode:
    """Check for errors that do not depend on the group."""
    if not (
        config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if not event.protocol_type or not event.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def join(group: GroupData, event: Join) -> None:
    error = _refusal(group, event)
    if error is not ErrorCode.NONE:
        group.reply(event.call, JoinAnswer(error, event.member_id))
    elif event.member_id in group.roster.pending:
        _join_pending(group, event)
    elif event.member_id:
        _rejoin(group, event, group.roster.by_id[event.member_id])
    elif event.instance_id is not None:
        _join_static(group, event, event.instance_id)
    else:
        _join_dynamic(group, event)


def _refusal(group: GroupData, event: Join) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_request(group.config, event)
    if error is not ErrorCode.NONE:
        return error
    roster = group.roster
    if len(roster) and event.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not roster.supports(event.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    is_pending = event.member_id in roster.pending and event.instance_id is None
    if event.member_id and not is_pending:
        return group.check_member(event.member_id, event.instance_id)
    return ErrorCode.NONE


def _join_dynamic(group: GroupData, event: Join) -> None:
    if _is_full(group):
        group.reply(event.call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    member_id = group.ids.member_id(event.client_id)
    if event.requires_known_member_id:
        # A client that never got the answer to its first Join tries again. If each attempt added a
        # member, the group would fill with members that do not exist (KIP-394).
        group.roster.pending.add(member_id)
        group.arm(TimerKind.PENDING_MEMBER, group.now_ms + event.session_timeout_ms, member_id)
        group.reply(event.call, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    else:
        _add(group, event, member_id)


def _join_pending(group: GroupData, event: Join) -> None:
    group.roster.pending.discard(event.member_id)
    group.cancel(TimerKind.PENDING_MEMBER, event.member_id)
    if _is_full(group):
        group.reply(event.call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        complete_if_ready(group)  # it is no longer waited for
    else:
        _add(group, event, event.member_id)


def _join_static(group: GroupData, event: Join, instance_id: str) -> None:
    known = group.roster.by_instance.get(instance_id)
    if known is not None:
        _replace(group, event, known)
    elif _is_full(group):
        group.reply(event.call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        _add(group, event, group.ids.member_id(instance_id))


def _is_full(group: GroupData) -> bool:
    return len(group.roster) >= group.config.max_size


def _new_member(event: Join, member_id: str, assignment: bytes = b"") -> Member:
    return Member(
        member_id,
        event.instance_id,
        event.client_id,
        event.client_host,
        event.session_timeout_ms,
        event.rebalance_timeout_ms,
        event.protocols,
        assignment,
    )


def _add(group: GroupData, event: Join, member_id: str) -> None:
    if not len(group.roster):
        group.protocol_type = event.protocol_type
    member = _new_member(event, member_id)
    member.is_new = True
    member.join_call = event.call
    group.roster.add(member)
    group.report(MemberChange.JOINED, member)
    group.joined_in_window = True
    group.arm(
        TimerKind.NEW_MEMBER, group.now_ms + group.config.new_member_join_timeout_ms, member_id
    )
    rebalance(group, _reason(event, f"member {member_id} joined"))


def _rejoin(group: GroupData, event: Join, member: Member) -> None:
    changed = member.protocols != event.protocols
    leads = group.roster.leader == member.member_id
    state = group.state
    if state is GroupState.STABLE and leads:
        # The leader noticed a change outside the members' metadata, new partitions for example.
        _update(group, event, member, "the leader joined again")
    elif state is GroupState.PREPARING_REBALANCE or changed:
        _update(group, event, member, f"member {member.member_id} joined with other protocols")
    else:
        # The answer to its last Join was lost; the generation is unchanged.
        group.renew_session(member)
        group.reply(event.call, current_generation(group, member))


def _update(group: GroupData, event: Join, member: Member, reason: str) -> None:
    group.roster.set_protocols(member, event.protocols)
    member.client_id = event.client_id
    member.client_host = event.client_host
    member.session_timeout_ms = event.session_timeout_ms
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    _park(group, member, event.call)
    rebalance(group, _reason(event, reason))


def _park(group: GroupData, member: Member, call: object) -> None:
    replaced = group.roster.park_join(member, call)
    if replaced is not None:
        # The client abandoned that request. Should it read the answer, it must keep its id.
        group.reply(replaced, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


def _replace(group: GroupData, event: Join, old: Member) -> None:
    """Let the new process of a static member take over under a new id, and fence the old one."""
    leader_before = group.roster.leader or ""
    new = _new_member(event, group.ids.member_id(old.instance_id or ""), old.assignment)
    group.answer_parked_join(old, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
    group.answer_parked_sync(old, ErrorCode.FENCED_INSTANCE_ID)
    _swap(group, old, new)
    _park(group, new, event.call)
    reason = _reason(event, f"static member {new.instance_id} has a new process")
    if group.state is GroupState.STABLE and _vote_stays(group, old, new):
        group.store(
            SaveReplacement(old, new, event.call, event.supports_skip_assignment, leader_before)
        )
    else:
        # This also applies in CompletingRebalance: the leader may be assigning to the old id right
        # now.
        rebalance(group, reason)


def _swap(group: GroupData, old: Member, new: Member) -> None:
    group.cancel_member_timers(old)
    group.roster.replace(old, new)
    if old.member_id in group.awaited_syncs:
        group.awaited_syncs.remove(old.member_id)
        group.awaited_syncs.add(new.member_id)
    group.renew_session(new)


def _vote_stays(group: GroupData, old: Member, new: Member) -> bool:
    """Check that the vote stays the same. No other vote changed, so equal names in equal order
    suffice."""
    same_names = [name for name, _ in old.protocols] == [name for name, _ in new.protocols]
    return same_names or group.roster.vote() == group.protocol_name


def replacement_stored(group: GroupData, saved: SaveReplacement, error: ErrorCode) -> None:
    new = saved.new
    if group.state is not GroupState.STABLE or new.join_call is not saved.call:
        return  # a rebalance or another process came first and answers the Join
    group.roster.take_join(new)
    if error is not ErrorCode.NONE:
        _swap(group, new, saved.old)
        group.store_later()  # the store may contain the new id after all
        group.reply(saved.call, JoinAnswer(error))
        return
    group.renew_session(new)
    if saved.supports_skip_assignment:
        answer = current_generation(group, new, skip_assignment=True)
    else:
        answer = current_generation(group, new, leader=saved.leader_before)
    group.reply(saved.call, answer)


def _reason(event: Join, reason: str) -> str:
    return f"{reason} ({event.reason})" if event.reason else reason


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
