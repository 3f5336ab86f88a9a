"""A group changes its protocol from classic to consumer when the first such member joins, and back
when the last of them is gone. Identity, revision and offsets stay; the stored record is
replaced."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group import Group
from moldau.broker.group.classic.group_data import Member as ClassicMember
from moldau.broker.group.classic.join import rebalance
from moldau.broker.group.effects import Effect, MemberChange
from moldau.broker.group.events import ConsumerHeartbeat, Join
from moldau.broker.group.group_base import LIMIT, GroupBase, SaveGroup, lowered
from moldau.broker.group.modern.core import PendingAnswer, refuse
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.modern.members import ClassicMemberMetadata, Member
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicIdPartition, TopicLookup
from moldau.broker.wire.consumer_protocol import (
    CONSUMER,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)

# librdkafka's sticky assignor keeps notes for itself in assignments. No client needs them.
_STANDARD_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def for_member(
    group: GroupBase, event: Join | ConsumerHeartbeat, topics: TopicLookup, now_ms: int
) -> tuple[GroupBase, list[Effect]]:
    """The group for this member: converted if the member joins by the other protocol and the group
    may change to that, else as it is. No other event converts a group."""
    if isinstance(group, Group):
        if isinstance(event, ConsumerHeartbeat) and event.epoch == 0 and may_upgrade(group):
            return upgrade(group, topics, now_ms)
    elif isinstance(event, Join) and group.state is GroupState.EMPTY:
        # An Empty group takes the protocol of its next member, whatever the policy.
        assert isinstance(group, ConsumerGroup)
        return to_classic(group, now_ms)
    return group, []


# --- classic -> consumer ---


def may_upgrade(group: Group) -> bool:
    """Check whether a member of the consumer protocol may convert this classic group."""
    if group.state is GroupState.DEAD:
        return False
    if not len(group.roster):
        return True  # Empty groups have nothing to lose, whatever the policy
    config = group.config.consumer
    if not config.upgrades or group.protocol_type != CONSUMER:
        return False
    if len(group.roster) > config.max_size:
        return False
    for member in group.roster.by_id.values():
        assignment = parse_assignment(member.assignment)
        if assignment is None:
            return False
        if assignment.user_data and group.protocol_name not in _STANDARD_ASSIGNORS:
            return False  # the application's own assignor may rely on it
        if parse_subscription(member.protocols[0][1]) is None:
            return False
    return True


def upgrade(group: Group, topics: TopicLookup, now_ms: int) -> tuple[ConsumerGroup, list[Effect]]:
    """Convert to the consumer protocol. The generation becomes both epochs, and each assignment
    becomes the target and the current assignment."""
    group.now_ms = now_ms
    for one in group.roster.by_id.values():
        group.answer_parked_join(one, ErrorCode.REBALANCE_IN_PROGRESS, one.member_id)
        group.answer_parked_sync(one, ErrorCode.REBALANCE_IN_PROGRESS)
    group.abandon_writes()
    group.cancel_all_timers()
    new = ConsumerGroup(group.group_id, group.identity, group.config, group.ids, now_ms, topics)
    new.revision = group.revision
    new.unsaved.whole = new.head_changed = True
    new.min_epoch = group.min_generation
    new.state_since_ms = group.state_since_ms
    if group.generation_id >= LIMIT:
        # Epochs are compared by size, so the classic members have to join again, at a lower one.
        new.group_epoch = new.target_epoch = lowered(group.min_generation, now_ms)
        for one in list(group.roster.by_id.values()):
            group.remove(one, MemberChange.EXPIRED)
    elif len(group.roster):
        new.group_epoch = new.target_epoch = group.generation_id
        for one in group.roster.by_id.values():
            _add_classic_member(new, one, group.generation_id)
        new.state = new.state_now()
    return new, group.take_effects()


def _add_classic_member(group: ConsumerGroup, one: ClassicMember, generation_id: int) -> None:
    subscription = parse_subscription(one.protocols[0][1])
    assignment = parse_assignment(one.assignment)
    assert subscription is not None
    assert assignment is not None
    member = Member(one.member_id, one.instance_id)
    member.client_id, member.client_host = one.client_id, one.client_host
    member.rebalance_timeout_ms = one.rebalance_timeout_ms
    member.rack_id = subscription.rack_id
    member.classic = ClassicMemberMetadata(one.session_timeout_ms, one.protocols)
    member.names = group.subscriptions.shared(subscription.topics)
    member.epoch = member.previous_epoch = member.shown_epoch = generation_id
    assigned: dict[TopicIdPartition, int] = {}
    for topic, partition in assignment.partitions:
        facts = group.topics.by_name(topic)
        if facts is not None and (facts.topic_id, partition) not in group.holders:
            assigned[facts.topic_id, partition] = generation_id
    member.assigned, member.target = assigned, frozenset(assigned)
    group.enter(member)
    group.hold(member)
    group.renew_session(member)
    group.changed(member)


# --- consumer -> classic ---


def downgrade(group: ConsumerGroup, now_ms: int) -> tuple[Group, list[Effect]]:
    """Convert back. The group epoch becomes the generation, and the members are asked to join
    again."""
    group.now_ms = now_ms
    new = _empty_classic(group, now_ms)
    new.protocol_type = CONSUMER
    new.generation_id = group.group_epoch
    for one in group.members.values():
        classic = one.classic
        assert classic is not None
        subscription = parse_subscription(classic.protocols[0][1])
        partitions = []
        for topic_id, partition in one.target:
            facts = group.topics.by_id(topic_id)
            if facts is not None:
                partitions.append((facts.name, partition))
        version = 0 if subscription is None else subscription.version
        new.roster.add(
            ClassicMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                classic.session_timeout_ms,
                one.rebalance_timeout_ms,
                classic.protocols,
                encode_assignment(version, partitions),
            )
        )
    _answer_waiting(group)
    effects = _forget(group)
    new.protocol_name = new.roster.vote()
    for member in new.roster.by_id.values():
        new.renew_session(member)
    # Store the group at once, so that a restart during the rebalance finds the classic group.
    new.state = GroupState.STABLE
    new.store(SaveGroup())
    rebalance(new, "the last member of the consumer protocol is gone")
    return new, effects + new.take_effects()


def _answer_waiting(group: ConsumerGroup) -> None:
    """Answer members that have left. All others have to retry, with the classic group."""
    for reason in (waiting := group.abandon_writes()):
        if isinstance(reason, PendingAnswer) and reason.member_id not in group.members:
            group.reply(reason.call, reason.answer)
    refuse(
        group,
        [
            one
            for one in waiting
            if isinstance(one, PendingAnswer) and one.member_id in group.members
        ],
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )


def to_classic(group: ConsumerGroup, now_ms: int) -> tuple[Group, list[Effect]]:
    """Convert an Empty group that a classic member joins."""
    group.now_ms = now_ms
    new = _empty_classic(group, now_ms)
    _answer_waiting(group)
    effects = _forget(group)
    new.store(SaveGroup())
    return new, effects + new.take_effects()


def _empty_classic(group: ConsumerGroup, now_ms: int) -> Group:
    new = Group(group.group_id, group.identity, group.config, group.ids, now_ms)
    new.min_generation = group.min_epoch
    new.state_since_ms = group.state_since_ms
    new.revision = group.revision
    return new


def _forget(group: ConsumerGroup) -> list[Effect]:
    group.abandon_writes()
    group.cancel_all_timers()
    return group.take_effects()
