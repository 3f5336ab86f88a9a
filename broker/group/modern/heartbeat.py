"""ConsumerGroupHeartbeat: a member joins, stays or leaves, and takes one step each time."""

from __future__ import annotations

from moldau.broker import expressions
from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerConfig
from moldau.broker.group.effects import HeartbeatAnswer, MemberChange
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.modern import target
from moldau.broker.group.modern.core import UNSTORED, PendingAnswer, refused
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.members import LEFT_FOR_A_WHILE, NOWHERE, Member, MemberState
from moldau.broker.group.modern.reconcile import conclude
from moldau.broker.group.states import GroupState

LEAVE = -1


def check_request(
    config: ConsumerConfig, event: ConsumerHeartbeat, version: int
) -> HeartbeatAnswer | None:
    """Check a request on its own, independently of the group."""
    text = _invalid(event, version)
    if text is not None:
        return refused(ErrorCode.INVALID_REQUEST, text)
    if event.assignor is not None and event.assignor not in config.assignors:
        known = ", ".join(config.assignors)
        text = f"ServerAssignor {event.assignor} is not supported. Supported assignors: {known}."
        return refused(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    if event.pattern and not expressions.is_valid(event.pattern):
        text = f"SubscribedTopicRegex `{event.pattern}` is not a valid regular expression."
        return refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    return None


def _invalid(event: ConsumerHeartbeat, version: int) -> str | None:
    if event.instance_id == "":
        return "InstanceId can't be empty."
    if event.rack_id == "":
        return "RackId can't be empty."
    if event.epoch < LEFT_FOR_A_WHILE:
        return "MemberEpoch is invalid."
    if event.epoch == LEFT_FOR_A_WHILE and event.instance_id is None:
        return "InstanceId can't be null."
    if not event.member_id and (version > 0 or event.epoch > 0 or event.epoch == LEAVE):
        return "MemberId can't be empty."
    if event.epoch != 0:
        return None
    if event.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.names is None and event.pattern is None:
        names = "SubscribedTopicNames or SubscribedTopicRegex"
        return f"Either {names} must be non-null when (re-)joining."
    return None


def heartbeat(group: ConsumerGroupData, event: ConsumerHeartbeat) -> None:
    if group.state is GroupState.DEAD:
        group.reply(event.call, refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    elif event.epoch < 0:
        _leave(group, event)
    else:
        _beat(group, event)


# --- joining and staying ---


def _beat(group: ConsumerGroupData, event: ConsumerHeartbeat) -> None:
    error = _refusal(group, event)
    if error is not None:
        group.reply(event.call, error)
        return
    member = group.members.get(event.member_id)
    raises = False
    if member is None:
        known = None if event.instance_id is None else group.by_instance.get(event.instance_id)
        if known is None:
            member = _join(group, event)
            raises = True
        else:
            member = replace(group, known, event.member_id)
    unsubscribed = _update(group, member, event)
    if raises:
        raises = group.group_epoch == 0 or not _stands_for_nothing(group, member)
    elif unsubscribed:
        raises = True
    if raises:
        group.raise_epoch(f"member {member.member_id} joined or subscribed")
    target.check(group)
    is_fresh = group.target_epoch == 0 or (raises and group.assigning is not None)
    if is_fresh:
        group.asking.append((member.member_id, event))
    else:
        conclude(group, member, event, unsubscribed=unsubscribed)


def _stands_for_nothing(group: ConsumerGroupData, member: Member) -> bool:
    """True if its pattern is not resolved yet: no target depends on it."""
    if member.names or not member.pattern:
        return False
    return group.subscriptions.patterns[member.pattern].topics is None


def _refusal(group: ConsumerGroupData, event: ConsumerHeartbeat) -> HeartbeatAnswer | None:
    """Return an error, or None to continue with a known member or a new one."""
    member = group.members.get(event.member_id)
    instance = event.instance_id
    static = None if instance is None else group.by_instance.get(instance)
    is_new = member is None and static is None and event.epoch == 0
    if is_new and len(group.members) >= group.config.consumer.max_size:
        text = f"The consumer group has reached its maximum capacity of {len(group.members)}"
        return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{text} members.")
    if instance is not None:
        if event.epoch == 0:
            if static is None or static is member:
                # The member is known by this id: the answer to its join was lost.
                return None
            if member is not None:
                return refused(ErrorCode.FENCED_INSTANCE_ID, "the member id is another instance's")
            if static.classic is None and not static.is_away:
                text = f"Static member {event.member_id} with instance id {instance} cannot join"
                text += f" the group because the instance id is owned by {static.member_id} member."
                return refused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
            return None
        if static is None:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance} is unknown.")
        if static is not member:
            text = f"Static member {event.member_id} with instance id {instance} was fenced by"
            return refused(ErrorCode.FENCED_INSTANCE_ID, f"{text} member {static.member_id}.")
    if member is None:
        if event.epoch == 0:
            return None
        text = f"Member {event.member_id} is not a member of group {group.group_id}."
        return refused(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return None if _is_current(member, event) else _fenced(member, event)


def _is_current(member: Member, event: ConsumerHeartbeat) -> bool:
    """True if the epoch is the last one sent, or an earlier one because an answer was lost."""
    epoch = event.epoch
    if epoch in (member.epoch, 0):
        return True
    is_possible = max(member.shown_epoch, 1) <= epoch < member.epoch
    if not is_possible and epoch != member.previous_epoch:
        return False
    if event.owned is None:
        return member.sent_epoch != member.epoch
    return event.owned <= member.assigned.keys()


def _fenced(member: Member, event: ConsumerHeartbeat) -> HeartbeatAnswer:
    if event.epoch > member.epoch:
        text = f"The consumer group member has a greater member epoch ({event.epoch}) than the one"
    else:
        text = f"The consumer group member has a smaller member epoch ({event.epoch}) than the one"
    text += f" known by the group coordinator ({member.epoch}). The member must abandon all its"
    return refused(ErrorCode.FENCED_MEMBER_EPOCH, f"{text} partitions and rejoin.")


def _join(group: ConsumerGroupData, event: ConsumerHeartbeat) -> Member:
    member = Member(event.member_id, event.instance_id)
    member.client_id, member.client_host = event.client_id, event.client_host
    group.enter(member)
    group.report(MemberChange.JOINED, member)
    return member


def replace(group: ConsumerGroupData, old: Member, member_id: str) -> Member:
    """Replace the process of a static member. It keeps the target under another id, and no epoch
    rises.

    The partitions that the old process had to give back are free: it has left, or is fenced now.
    """
    new = Member(member_id, old.instance_id)
    for name in ("rack_id", "client_id", "client_host", "rebalance_timeout_ms", "names", "pattern"):
        setattr(new, name, getattr(old, name))
    new.assignor, new.target = old.assignor, old.target
    assigned = old.assigned
    group.remove(old, None)
    new.assigned = assigned
    group.enter(new)
    group.hold(new)
    group.changed(new)
    return new


def _update(group: ConsumerGroupData, member: Member, event: ConsumerHeartbeat) -> bool:
    """Apply the request to the member. Returns True if its subscription changed."""
    fields: list[tuple[str, object]] = [
        ("client_id", event.client_id),
        ("client_host", event.client_host),
    ]
    if event.rack_id is not None:
        fields.append(("rack_id", event.rack_id))
    if event.rebalance_timeout_ms != -1:
        fields.append(("rebalance_timeout_ms", event.rebalance_timeout_ms))
    if event.assignor is not None:
        fields.append(("assignor", event.assignor))
    if member.classic is not None:  # the same process has changed its protocol
        member.classic = None
        del group.classic_members[member.member_id]
        group.cancel(TimerKind.CLASSIC_JOIN, member.member_id)
        group.cancel(TimerKind.CLASSIC_SYNC, member.member_id)
        group.changed(member)
    for name, value in fields:
        if getattr(member, name) != value:
            setattr(member, name, value)
            group.changed(member)
    return subscribe(group, member, event.names, event.pattern)


def subscribe(
    group: ConsumerGroupData, member: Member, names: tuple[str, ...] | None, pattern: str | None
) -> bool:
    """Subscribe the member. Returns True if the group's target may depend on the change."""
    wanted = member.names if names is None else group.subscriptions.shared(names)
    wanted_pattern = member.pattern if pattern is None else pattern
    if wanted == member.names and wanted_pattern == member.pattern:
        return False
    before = group.subscriptions.topics_of(member)
    group.subscriptions.remove(member)
    member.names, member.pattern = wanted, wanted_pattern
    group.subscriptions.add(member)
    group.changed(member)
    group.head_changed = True  # the head contains the topic hash and the patterns
    target.match_new_patterns(group)
    return group.subscriptions.topics_of(member) != before


# --- leaving ---


def _leave(group: ConsumerGroupData, event: ConsumerHeartbeat) -> None:
    member = group.members.get(event.member_id)
    if event.instance_id is not None:
        static = group.by_instance.get(event.instance_id)
        if static is None:
            group.reply(event.call, refused(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if static is not member:
            group.reply(event.call, refused(ErrorCode.FENCED_INSTANCE_ID))
            return
    if member is None:
        text = f"Member {event.member_id} is not a member of group {group.group_id}."
        group.reply(event.call, refused(ErrorCode.UNKNOWN_MEMBER_ID, text))
        return
    if event.epoch == LEFT_FOR_A_WHILE:
        _leave_for_a_while(group, member)
    else:
        group.remove(member, MemberChange.LEFT)
        departed(group, f"member {member.member_id} left")
    answer = HeartbeatAnswer(ErrorCode.NONE, member_id=member.member_id, epoch=event.epoch)
    group.answer_when_stored(
        PendingAnswer(member.member_id, event.call, answer, UNSTORED, event.epoch, None)
    )


def _leave_for_a_while(group: ConsumerGroupData, member: Member) -> None:
    """Keep its partitions until its session ends."""
    group.unrest(member)
    group.cancel(TimerKind.REVOKE, member.member_id)
    member.epoch, member.rests_at = LEFT_FOR_A_WHILE, NOWHERE
    member.state = MemberState.STABLE
    group.release(member)
    member.revoking = {}  # its process has stopped
    group.hold(member)
    group.renew_session(member)
    group.changed(member)


# --- timers ---


def session_timer_fired(group: ConsumerGroupData, member_id: str) -> None:
    member = group.members[member_id]
    member.session_timer_ms = None
    if member.session_deadline_ms > group.now_ms:
        group.arm_session(member)
        return
    expire(group, member, f"session of member {member_id} expired")


def revoke_timer_fired(group: ConsumerGroupData, member_id: str) -> None:
    member = group.members[member_id]
    if member.state is MemberState.UNREVOKED:
        expire(group, member, f"member {member_id} did not give partitions back in time")


def expire(group: ConsumerGroupData, member: Member, reason: str) -> None:
    group.remove(member, MemberChange.EXPIRED)
    departed(group, reason)


def departed(group: ConsumerGroupData, reason: str) -> None:
    """Handle the removal of a member. If the group becomes classic by it, its epoch stays: it is
    the generation that the classic members know, so they can join again and keep their
    partitions."""
    if group.becomes_classic:
        group.reason = reason
        return
    group.raise_epoch(reason)
    target.check(group)
