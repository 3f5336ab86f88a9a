"""The last part of a heartbeat: one step of the member towards its target, and the answer.

`reconcile` is a pure function; everything else follows from it.

    the member                                            becomes      epoch         is assigned
    has what it shall not have, and its owned list
      does not prove that it gave it up                   UNREVOKED    as it was     has ∩ target
    else waits for partitions that others have            UNRELEASED   target's      target - those
    else                                                  STABLE       target's      target

A partition has one holder at most: the member it is assigned to, or that has not given it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from operator import itemgetter

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import HeartbeatAnswer
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.modern.core import UNSTORED, PendingAnswer
from moldau.broker.group.modern.group_data import ConsumerGroupData, Step
from moldau.broker.group.modern.members import Member, MemberState
from moldau.broker.group.topics import PartitionEpochs, TopicIdPartition

_TOPIC = itemgetter(0)


def reconcile(
    member: Member,
    target_epoch: int,
    owned: AbstractSet[TopicIdPartition] | None,
    holders: Mapping[TopicIdPartition, Member],
    is_subscribed: Callable[[bytes], bool],
    *,
    unsubscribed: bool = False,
) -> Step | None:
    """Return the next step of a member, or None if it stays as it is.

    `owned` are the partitions that the member says it has; None proves nothing. `unsubscribed`
    means that the member has just changed its subscription, so it may have to give back
    partitions that no target has taken from it yet.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch and not unsubscribed:
        return None
    if member.state is MemberState.UNREVOKED and not _gave_up(owned, member.revoking):
        kept, lost = _split(member.assigned, _subscribed(member.assigned.keys(), is_subscribed))
        if not lost:
            return None
        return Step(MemberState.UNREVOKED, member.epoch, kept, {**member.revoking, **lost})
    wanted = _subscribed(member.target, is_subscribed)
    kept, lost = _split(member.assigned, wanted)
    if lost and not _gave_up(owned, lost):
        return Step(MemberState.UNREVOKED, member.epoch, kept, lost)
    missing = wanted - kept.keys()
    if not missing:
        return Step(MemberState.STABLE, target_epoch, kept, {})
    free: AbstractSet[TopicIdPartition] = missing
    if not holders.keys().isdisjoint(missing):
        free = {partition for partition in missing if holders.get(partition, member) is member}
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    return Step(state, target_epoch, {**kept, **dict.fromkeys(free, target_epoch)}, {})


def _subscribed(
    partitions: AbstractSet[TopicIdPartition], is_subscribed: Callable[[bytes], bool]
) -> AbstractSet[TopicIdPartition]:
    gone = {topic_id for topic_id in set(map(_TOPIC, partitions)) if not is_subscribed(topic_id)}
    return (
        {partition for partition in partitions if partition[0] not in gone} if gone else partitions
    )


def _gave_up(owned: AbstractSet[TopicIdPartition] | None, lost: PartitionEpochs) -> bool:
    return owned is not None and owned.isdisjoint(lost)


def _split(
    assigned: PartitionEpochs, kept: AbstractSet[TopicIdPartition]
) -> tuple[PartitionEpochs, PartitionEpochs]:
    """Split into the partitions that are kept and the others. If all are kept, this is the same
    object: a member may have thousands."""
    lost = assigned.keys() - kept
    if not lost:
        return assigned, {}
    return (
        {partition: epoch for partition, epoch in assigned.items() if partition not in lost},
        {partition: assigned[partition] for partition in lost},
    )


def advance(
    group: ConsumerGroupData,
    member: Member,
    shown_epoch: int,
    owned: frozenset[TopicIdPartition] | None,
    *,
    unsubscribed: bool = False,
) -> None:
    """Take one step of a member that sent this epoch and these owned partitions."""
    step = reconcile(
        member,
        group.target_epoch,
        owned,
        group.holders,
        lambda topic_id: group.subscriptions.has(member, topic_id),
        unsubscribed=unsubscribed,
    )
    if step is not None and _differs(member, step):
        group.take_step(member, step, shown_epoch)
    member.shown_epoch = max(member.shown_epoch, shown_epoch)
    group.renew_session(member)


def repeats_all(event: ConsumerHeartbeat) -> bool:
    """True if the request repeats every field, so that the answer has to as well."""
    return event.epoch == 0 or (
        event.rebalance_timeout_ms != -1
        and (event.names is not None or event.pattern is not None)
        and event.owned is not None
    )


def conclude(
    group: ConsumerGroupData,
    member: Member,
    event: ConsumerHeartbeat,
    *,
    unsubscribed: bool = False,
) -> None:
    """Finish a heartbeat once there is a target: take a step and answer."""
    # An owned list proves something only in the member's current epoch. With an earlier epoch, the
    # request may have been sent before the member received the partitions that the list lacks.
    is_behind = event.epoch != member.epoch
    owned = None if is_behind else event.owned
    advance(group, member, event.epoch, owned, unsubscribed=unsubscribed)
    # A member that is behind has missed an answer, and the assignment in it.
    is_new = repeats_all(event) or is_behind or member.sent is not member.assigned
    answer = HeartbeatAnswer(
        ErrorCode.NONE,
        member_id=member.member_id,
        epoch=member.epoch,
        interval_ms=group.limits.heartbeat_interval_ms,
        assigned=member.assigned.keys() if is_new else None,
        rests=member.rests_at == group.target_epoch,
    )
    group.answer_when_stored(
        PendingAnswer(
            member.member_id,
            event.call,
            answer,
            UNSTORED,
            member.epoch,
            member.assigned if is_new else None,
        )
    )


def _differs(member: Member, step: Step) -> bool:
    return (
        member.state is not step.state
        or member.epoch != step.epoch
        or (member.assigned is not step.assigned and member.assigned != step.assigned)
        or member.revoking != step.revoking
    )
