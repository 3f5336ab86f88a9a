"""One step of a member towards its target. A pure function; everything else follows from it.

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

from msgspec import Struct

from moldau.broker.group.modern.members import Member, MemberState
from moldau.broker.group.topics import PartitionEpochs, TopicIdPartition

_TOPIC = itemgetter(0)


class Step(Struct, frozen=True):
    state: MemberState
    epoch: int
    assigned: PartitionEpochs
    revoking: PartitionEpochs


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

    `owned` is what the member says it has; None proves nothing. `unsubscribed` means that the
    member has just changed its subscription, so it may have to give back partitions that no target
    has taken from it yet.
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
