"""Classic members in a group of the consumer protocol, while its clients are being upgraded.

They are members like the others and take the same steps. A Join is a heartbeat whose subscription
says what the member owns; the generation is the member's epoch; a Sync gets the assignment at once.
There is no leader, and nothing is parked. REBALANCE_IN_PROGRESS tells them to join again.
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.join import check_request
from moldau.broker.group.effects import (
    JoinAnswer,
    LeaveAnswer,
    LeftMember,
    MemberChange,
    SyncAnswer,
)
from moldau.broker.group.events import Join, Leave, LeavingMember, Sync
from moldau.broker.group.group_base import TimerKind
from moldau.broker.group.modern import target
from moldau.broker.group.modern.core import PendingAnswer
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.heartbeat import departed, expire, replace, subscribe
from moldau.broker.group.modern.members import ClassicMemberMetadata, Member, MemberState
from moldau.broker.group.modern.reconcile import advance
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicIdPartition
from moldau.broker.wire.consumer_protocol import CONSUMER, encode_assignment, parse_subscription

# --- JoinGroup ---


def join(group: ConsumerGroupData, event: Join) -> None:
    error = _join_refusal(group, event)
    if error is not ErrorCode.NONE:
        group.reply(event.call, JoinAnswer(error, event.member_id))
        return
    static = group.by_instance.get(event.instance_id) if event.instance_id is not None else None
    member_id = event.member_id or group.ids.member_id(event.instance_id or event.client_id)
    if not event.member_id and event.instance_id is None and event.requires_known_member_id:
        # Nothing is kept for it: it becomes a member with any id that it comes back with.
        group.reply(event.call, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return
    _admit(group, event, member_id, static)


def _join_refusal(group: ConsumerGroupData, event: Join) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_request(group.config, event)
    if error is not ErrorCode.NONE:
        return error
    if event.protocol_type != CONSUMER or parse_subscription(event.protocols[0][1]) is None:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not supports(group, event.member_id, event.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    static = None
    if event.instance_id is not None:
        static = group.by_instance.get(event.instance_id)
        if event.member_id:
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if static.member_id != event.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
    if event.member_id not in group.members and static is None:
        if not group.config.consumer.upgrades and not group.config.consumer.downgrades:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # behaviour 8.31
        if len(group.members) >= group.config.consumer.max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def supports(
    group: ConsumerGroupData, member_id: str, protocols: tuple[tuple[str, bytes], ...]
) -> bool:
    """Check that all classic members have a protocol in common: the group may become classic
    again."""
    common = {name for name, _ in protocols}
    for member in group.classic_members.values():
        if member.classic is not None and member.member_id != member_id:
            common &= {name for name, _ in member.classic.protocols}
    return bool(common)


def _admit(group: ConsumerGroupData, event: Join, member_id: str, static: Member | None) -> None:
    subscription = parse_subscription(event.protocols[0][1])
    assert subscription is not None
    member = group.members.get(member_id)
    is_new = False
    if member is None and static is not None:
        member = replace(group, static, member_id)
    elif member is None:
        member = Member(member_id, event.instance_id)
        member.client_id, member.client_host = event.client_id, event.client_host
        group.enter(member)
        group.report(MemberChange.JOINED, member)
        is_new = True
    _update(group, member, event)
    if subscription.rack_id:
        member.rack_id = subscription.rack_id
    changed = subscribe(group, member, subscription.topics, "")
    if is_new or changed:
        group.raise_epoch(f"classic member {member_id} joined or subscribed")
    target.check(group)
    # Nothing is parked: if a target is being computed, the member joins again once it is there.
    advance(group, member, member.epoch, _owned(group, subscription.owned), unsubscribed=True)
    _watch_sync(group, member)
    answer = JoinAnswer(
        error=ErrorCode.NONE,
        member_id=member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=event.protocols[0][0],
    )
    refusal = JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, event.member_id)
    group.answer_when_stored(
        PendingAnswer(member_id, event.call, answer, refusal, member.epoch, None)
    )


def _update(group: ConsumerGroupData, member: Member, event: Join) -> None:
    classic = ClassicMemberMetadata(event.session_timeout_ms, event.protocols)
    member.classic = classic
    group.classic_members[member.member_id] = member
    member.client_id, member.client_host = event.client_id, event.client_host
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.assignor = None
    group.changed(member)


def _owned(
    group: ConsumerGroupData, owned: tuple[tuple[str, int], ...]
) -> frozenset[TopicIdPartition]:
    partitions = set()
    for topic, partition in owned:
        facts = group.topics.by_name(topic)
        if facts is not None:
            partitions.add((facts.topic_id, partition))
    return frozenset(partitions)


def _watch_sync(group: ConsumerGroupData, member: Member) -> None:
    assert member.classic is not None
    member.classic.synced = False
    member.classic.asked_ms = None
    group.cancel(TimerKind.CLASSIC_JOIN, member.member_id)
    at_ms = group.now_ms + member.rebalance_timeout_ms
    group.arm(TimerKind.CLASSIC_SYNC, at_ms, member.member_id)
    if should_join_again(group, member):
        group.arm(TimerKind.CLASSIC_JOIN, at_ms, member.member_id)


# --- SyncGroup, Heartbeat ---


def _check(
    group: ConsumerGroupData, member_id: str, instance_id: str | None, generation_id: int
) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if instance_id is not None:
        static = group.by_instance.get(instance_id)
        if static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if static.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id != member.epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def should_join_again(group: ConsumerGroupData, member: Member) -> bool:
    """True if a Join would help: there is a newer target, a revocation, or a free partition."""
    if member.epoch < group.target_epoch or member.state is MemberState.UNREVOKED:
        return True
    if member.state is not MemberState.UNRELEASED:
        return False
    return any(
        partition not in member.assigned and group.holders.get(partition) is None
        for partition in member.target
        if group.subscriptions.has(member, partition[0])
    )


def sync(group: ConsumerGroupData, event: Sync) -> None:
    error = _check(group, event.member_id, event.instance_id, event.generation_id)
    member = group.members.get(event.member_id)
    if error is not ErrorCode.NONE or member is None or member.classic is None:
        group.reply(event.call, SyncAnswer(error))
        return
    name, metadata = member.classic.protocols[0]
    if event.protocol_type not in (None, CONSUMER) or event.protocol_name not in (None, name):
        group.reply(event.call, SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if member.epoch < group.target_epoch and member.state is not MemberState.UNREVOKED:
        # A member that has to revoke partitions has joined already: it learns here what it may
        # keep.
        _ask(group, member)
        group.reply(event.call, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        return
    member.classic.synced = True
    group.cancel(TimerKind.CLASSIC_SYNC, member.member_id)
    group.renew_session(member)
    subscription = parse_subscription(metadata)
    version = 0 if subscription is None else subscription.version
    partitions = []
    for topic_id, partition in member.assigned:
        facts = group.topics.by_id(topic_id)
        if facts is not None:
            partitions.append((facts.name, partition))
    answer = SyncAnswer(ErrorCode.NONE, CONSUMER, name, encode_assignment(version, partitions))
    refusal = SyncAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.answer_when_stored(
        PendingAnswer(member.member_id, event.call, answer, refusal, member.epoch, member.assigned)
    )


def heartbeat(
    group: ConsumerGroupData,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    now_ms: int,
) -> ErrorCode:
    """Handle a classic Heartbeat. It has no effects: it moves deadlines that armed timers check."""
    error = _check(group, member_id, instance_id, generation_id)
    if error is not ErrorCode.NONE:
        return error
    member = group.members[member_id]
    assert member.classic is not None
    member.session_deadline_ms = now_ms + member.classic.session_timeout_ms
    if not should_join_again(group, member):
        return ErrorCode.NONE
    if member.classic.asked_ms is None:
        member.classic.asked_ms = now_ms
    return ErrorCode.REBALANCE_IN_PROGRESS


def _ask(group: ConsumerGroupData, member: Member) -> None:
    assert member.classic is not None
    if member.classic.asked_ms is None:
        member.classic.asked_ms = group.now_ms


def join_timer_fired(group: ConsumerGroupData, member_id: str) -> None:
    """The timeout counts from when the member was asked to join again. Otherwise its session ends
    it."""
    member = group.members[member_id]
    if member.classic is None or not should_join_again(group, member):
        return
    asked_ms = member.classic.asked_ms
    if asked_ms is None:
        asked_ms = group.now_ms
    due_ms = asked_ms + member.rebalance_timeout_ms
    if due_ms > group.now_ms:
        group.arm(TimerKind.CLASSIC_JOIN, due_ms, member_id)
    else:
        expire(group, member, f"classic member {member_id} did not join again in time")


def sync_timer_fired(group: ConsumerGroupData, member_id: str) -> None:
    member = group.members[member_id]
    if member.classic is not None and not member.classic.synced:
        expire(group, member, f"classic member {member_id} did not ask for its assignment")


# --- LeaveGroup ---


def leave(group: ConsumerGroupData, event: Leave) -> None:
    """Remove members of either protocol; administrators use this too. A member that is named twice
    counts as removed both times."""
    if group.state is GroupState.DEAD:
        group.reply(event.call, LeaveAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    left = []
    gone: dict[str, Member] = {}
    for leaving in event.members:
        member = _leaving(group, leaving)
        error = ErrorCode.NONE
        if isinstance(member, ErrorCode):
            error = member
        else:
            gone[member.member_id] = member
        left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
    answer = LeaveAnswer(ErrorCode.NONE, tuple(left))
    if not gone:
        group.reply(event.call, answer)
        return
    for member in gone.values():
        group.remove(member, MemberChange.LEFT)
    departed(group, "members left")
    refusal = LeaveAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    last = next(reversed(gone))
    group.answer_when_stored(PendingAnswer(last, event.call, answer, refusal, 0, None))


def _leaving(group: ConsumerGroupData, leaving: LeavingMember) -> Member | ErrorCode:
    if leaving.instance_id is not None:
        static = group.by_instance.get(leaving.instance_id)
        if static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if leaving.member_id and static.member_id != leaving.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return static
    return group.members.get(leaving.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
