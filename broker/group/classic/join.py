"""JoinGroup: new members, pending ones, rejoins, and new processes of static members."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.core import Core
from moldau.broker.group.classic.members import Member, SaveReplacement
from moldau.broker.group.classic.rebalance import complete_if_ready, current_generation, rebalance
from moldau.broker.group.config import GroupConfig
from moldau.broker.group.effects import JoinAnswer, MemberChange
from moldau.broker.group.events import Join
from moldau.broker.group.states import GroupState
from moldau.broker.group.timers import TimerKind


def check_request(config: GroupConfig, event: Join) -> ErrorCode:
    """Errors of a Join that do not depend on the group."""
    if not (
        config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if not event.protocol_type or not event.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def join(group: Core, event: Join) -> None:
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


def _refusal(group: Core, event: Join) -> ErrorCode:
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


def _join_dynamic(group: Core, event: Join) -> None:
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


def _join_pending(group: Core, event: Join) -> None:
    group.roster.pending.discard(event.member_id)
    group.cancel(TimerKind.PENDING_MEMBER, event.member_id)
    if _is_full(group):
        group.reply(event.call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        complete_if_ready(group)  # it is no longer waited for
    else:
        _add(group, event, event.member_id)


def _join_static(group: Core, event: Join, instance_id: str) -> None:
    known = group.roster.by_instance.get(instance_id)
    if known is not None:
        _replace(group, event, known)
    elif _is_full(group):
        group.reply(event.call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        _add(group, event, group.ids.member_id(instance_id))


def _is_full(group: Core) -> bool:
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


def _add(group: Core, event: Join, member_id: str) -> None:
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


def _rejoin(group: Core, event: Join, member: Member) -> None:
    changed = member.protocols != event.protocols
    leads = group.roster.leader == member.member_id
    state = group.state
    if state is GroupState.STABLE and leads:
        # The leader saw a change outside the members' metadata, new partitions for example.
        _update(group, event, member, "the leader joined again")
    elif state is GroupState.PREPARING_REBALANCE or changed:
        _update(group, event, member, f"member {member.member_id} joined with other protocols")
    else:
        # The answer to its last Join was lost; the generation is unchanged.
        group.renew_session(member)
        group.reply(event.call, current_generation(group, member))


def _update(group: Core, event: Join, member: Member, reason: str) -> None:
    group.roster.set_protocols(member, event.protocols)
    member.client_id = event.client_id
    member.client_host = event.client_host
    member.session_timeout_ms = event.session_timeout_ms
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    _park(group, member, event.call)
    rebalance(group, _reason(event, reason))


def _park(group: Core, member: Member, call: object) -> None:
    replaced = group.roster.park_join(member, call)
    if replaced is not None:
        # The client gave that request up. Should it read the answer, it must keep its id.
        group.reply(replaced, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


def _replace(group: Core, event: Join, old: Member) -> None:
    """A new process of a static member takes over under a new id; the old one is fenced."""
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
        # In CompletingRebalance too: the leader may be assigning to the old id right now.
        rebalance(group, reason)


def _swap(group: Core, old: Member, new: Member) -> None:
    group.cancel_member_timers(old)
    group.roster.replace(old, new)
    if old.member_id in group.awaited_syncs:
        group.awaited_syncs.remove(old.member_id)
        group.awaited_syncs.add(new.member_id)
    group.renew_session(new)


def _vote_stays(group: Core, old: Member, new: Member) -> bool:
    """No other vote changed, so the same names in the same order give the same result."""
    same_names = [name for name, _ in old.protocols] == [name for name, _ in new.protocols]
    return same_names or group.roster.vote() == group.protocol_name


def replacement_stored(group: Core, saved: SaveReplacement, error: ErrorCode) -> None:
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
