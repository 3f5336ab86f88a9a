"""ShareGroupHeartbeat: a member joins, stays or leaves. Nothing is revoked, so a member has its
whole target with the next answer."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import HeartbeatAnswer, MemberChange
from moldau.broker.group.events import ShareHeartbeat, TopicsChanged
from moldau.broker.group.modern import target
from moldau.broker.group.modern.core import UNSTORED, ModernCore, PendingAnswer, refused
from moldau.broker.group.modern.members import Member
from moldau.broker.group.states import GroupState

LEAVE = -1
MAX_MEMBER_ID = 36  # characters


def check_request(event: ShareHeartbeat) -> HeartbeatAnswer | None:
    """Check a request on its own, independently of the group."""
    text = _invalid(event)
    return None if text is None else refused(ErrorCode.INVALID_REQUEST, text)


def _invalid(event: ShareHeartbeat) -> str | None:
    if not event.member_id:
        return "MemberId can't be empty."
    if len(event.member_id) > MAX_MEMBER_ID:
        return f"MemberId can't have more than {MAX_MEMBER_ID} characters."
    if event.rack_id == "":
        return "RackId can't be empty."
    if event.epoch < LEAVE:
        return "MemberEpoch is invalid."
    if event.epoch == 0 and not event.names:
        return "SubscribedTopicNames must be set in first request."
    return None


def heartbeat(group: ModernCore, event: ShareHeartbeat) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif event.epoch == LEAVE:
        _leave(group, event)
    else:
        _beat(group, event)


def _beat(group: ModernCore, event: ShareHeartbeat) -> None:
    error = _refusal(group, event)
    if error is not None:
        group.reply(event.call, error)
        return
    member = group.members.get(event.member_id)
    raises = member is None
    if member is None:
        member = Member(event.member_id)
        member.client_id, member.client_host = event.client_id, event.client_host
        group.enter(member)
        group.report(MemberChange.JOINED, member)
    if _update(group, member, event) or raises:
        raises = True
        group.raise_epoch(f"member {member.member_id} joined or subscribed")
    target.check(group)
    if group.target_epoch == 0 or (raises and group.assigning is not None):
        group.asking.append((member.member_id, event))
    else:
        conclude(group, member, event)


def _refusal(group: ModernCore, event: ShareHeartbeat) -> HeartbeatAnswer | None:
    """Return an error, or None to continue with a known member or a new one."""
    member = group.members.get(event.member_id)
    if member is None:
        if len(group.members) >= group.config.share.max_size:
            text = f"The share group has reached its maximum capacity of {len(group.members)}"
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{text} members.")
        if event.epoch == 0:
            return None
        text = f"Member {event.member_id} is not a member of group {group.group_id}."
        return refused(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if event.epoch in (0, member.epoch, member.previous_epoch):
        return None
    size = "greater" if event.epoch > member.epoch else "smaller"
    text = f"The share group member has a {size} member epoch ({event.epoch}) than the one known"
    text += f" by the group coordinator ({member.epoch}). The member must rejoin."
    return refused(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _update(group: ModernCore, member: Member, event: ShareHeartbeat) -> bool:
    """Apply the request to the member. Returns True if it subscribes to other topics."""
    rack_id = member.rack_id if event.rack_id is None else event.rack_id
    facts = event.client_id, event.client_host, rack_id
    if facts != (member.client_id, member.client_host, member.rack_id):
        member.client_id, member.client_host, member.rack_id = facts
        group.changed(member)
    names = member.names if event.names is None else group.subscriptions.shared(event.names)
    if names == member.names:
        return False
    group.subscriptions.remove(member)
    member.names = names
    group.subscriptions.add(member)
    group.changed(member)
    group.head_changed = True  # the head contains the topic hash
    return True


def conclude(group: ModernCore, member: Member, event: ShareHeartbeat) -> None:
    """Finish a heartbeat once there is a target: the member has what of it it subscribes to."""
    wanted = {
        partition for partition in member.target if group.subscriptions.has(member, partition[0])
    }
    if member.epoch != group.target_epoch:
        member.previous_epoch, member.epoch = member.epoch, group.target_epoch
        group.changed(member)
    if wanted != member.assigned.keys():
        # Otherwise it stays the same object, which tells that an answer need not repeat it.
        member.assigned = dict.fromkeys(sorted(wanted), member.epoch)
        group.changed(member)
    group.rest(member)
    group.renew_session(member)
    is_new = event.epoch == 0 or event.names is not None or member.sent is not member.assigned
    answer = HeartbeatAnswer(
        ErrorCode.NONE,
        member_id=member.member_id,
        epoch=member.epoch,
        interval_ms=group.limits.heartbeat_interval_ms,
        assigned=member.assigned.keys() if is_new else None,
        rests=member.rests_at == group.target_epoch,
    )
    sent = member.assigned if is_new else None
    group.answer_when_stored(
        PendingAnswer(member.member_id, event.call, answer, UNSTORED, member.epoch, sent)
    )


def _leave(group: ModernCore, event: ShareHeartbeat) -> None:
    member = group.members.get(event.member_id)
    if member is None:
        text = f"Member {event.member_id} is not a member of group {group.group_id}."
        group.reply(event.call, refused(ErrorCode.UNKNOWN_MEMBER_ID, text))
        return
    group.remove(member, MemberChange.LEFT)
    _departed(group, f"member {member.member_id} left")
    answer = HeartbeatAnswer(ErrorCode.NONE, member_id=member.member_id, epoch=LEAVE)
    group.answer_when_stored(
        PendingAnswer(member.member_id, event.call, answer, UNSTORED, LEAVE, None)
    )


def session_timer_fired(group: ModernCore, member_id: str) -> None:
    member = group.members[member_id]
    member.session_timer_ms = None
    if member.session_deadline_ms > group.now_ms:
        group.arm_session(member)
        return
    group.remove(member, MemberChange.EXPIRED)
    _departed(group, f"session of member {member_id} expired")


def _departed(group: ModernCore, reason: str) -> None:
    group.raise_epoch(reason)
    target.check(group)


def topics_changed(group: ModernCore, event: TopicsChanged) -> None:
    if group.members and group.subscriptions.rehash(event.names):
        group.raise_epoch("subscribed topics have changed")
        target.check(group)
