"""SyncGroup stores the leader's assignments, then gives every member its own."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData, Member, SaveAssignments
from moldau.broker.group.classic.join import prepare, refuse_syncs
from moldau.broker.group.effects import MemberChange, SyncAnswer
from moldau.broker.group.events import Sync
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.states import GroupState


def sync(group: GroupData, event: Sync) -> None:
    error = _refusal(group, event)
    if error is not ErrorCode.NONE:
        group.reply(event.call, SyncAnswer(error))
        return
    member = group.roster.by_id[event.member_id]
    _no_longer_awaited(group, member)
    if group.state is GroupState.STABLE:
        group.renew_session(member)
        group.reply(event.call, _assignment(group, member))
        return
    if member.sync_call is not None:
        # The client abandoned that request and sent another.
        group.answer_parked_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.sync_call = event.call
    if member.member_id == group.roster.leader and group.assignments is None:
        # A repeated Sync of the leader does not replace the assignments that are being stored.
        group.assignments = dict(event.assignments)
        group.store(SaveAssignments(group.generation_id))


def _refusal(group: GroupData, event: Sync) -> ErrorCode:
    error = group.check_member(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if event.protocol_type is not None and event.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if event.protocol_name is not None and event.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _no_longer_awaited(group: GroupData, member: Member) -> None:
    if member.member_id in group.awaited_syncs:
        group.awaited_syncs.remove(member.member_id)
        if not group.awaited_syncs:
            group.cancel(TimerKind.SYNC)


def _assignment(group: GroupData, member: Member) -> SyncAnswer:
    return SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def assignments_stored(group: GroupData, saved: SaveAssignments, error: ErrorCode) -> None:
    if (
        group.state is not GroupState.COMPLETING_REBALANCE
        or group.generation_id != saved.generation_id
        or group.assignments is None
    ):
        return  # out of date: the parked Syncs have been answered
    if error is not ErrorCode.NONE:
        refuse_syncs(group, error)
        prepare(group, f"storing the assignments failed: {error.name}")
        return
    for member in group.roster.by_id.values():
        member.assignment = group.assignments.get(member.member_id, b"")
    group.assignments = None
    group.move(GroupState.STABLE, "the assignments are stored")
    for member in group.roster.by_id.values():
        call = member.sync_call
        if call is not None:
            member.sync_call = None
            group.reply(call, _assignment(group, member))
            group.renew_session(member)


def sync_timer_fired(group: GroupData) -> None:
    """Remove members of this generation that never sent their Sync."""
    missing = [group.roster.by_id[member_id] for member_id in group.awaited_syncs]
    if not missing:
        return
    for member in missing:
        group.remove(member, MemberChange.EXPIRED)
    prepare(group, f"{len(missing)} members did not ask for their assignment")
