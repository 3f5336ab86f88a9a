"""Offset commits to a group of the consumer protocol, and views of it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from moldau.broker.errors import ErrorCode
from moldau.broker.group.modern.group_data import ConsumerGroupData
from moldau.broker.group.modern.members import Member
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import TopicIdPartition, TopicLookup, by_topic
from moldau.broker.group.views import ConsumerGroupView, ConsumerMemberView, PartitionOwner

FIRST_VERSION_WITH_MEMBER_EPOCH = 9


def check_commit(
    group: ConsumerGroupData,
    member_id: str,
    epoch: int,
    version: int,
    partitions: Iterable[tuple[str | bytes, int]],
    *,
    transactional: bool,
) -> ErrorCode:
    """Check a commit, which does not renew the session. An older epoch is accepted for partitions
    that the member has had since that epoch (KIP-1251): no other member can have committed them."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    if transactional and epoch < 0 and not member_id:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_classic = member.classic is not None
    if not is_classic and not transactional and version < FIRST_VERSION_WITH_MEMBER_EPOCH:
        return ErrorCode.UNSUPPORTED_VERSION
    stale = ErrorCode.STALE_MEMBER_EPOCH
    if is_classic or transactional:
        stale = ErrorCode.ILLEGAL_GENERATION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch > member.epoch or is_classic or epoch < 0:
        return stale
    for topic, partition in partitions:
        found = _with_topic_id(group.topics, topic, partition)
        since = None if found is None else member.has(found)
        if since is None or since > epoch:
            return stale
    return ErrorCode.NONE


def _with_topic_id(
    topics: TopicLookup, topic: str | bytes, partition: int
) -> TopicIdPartition | None:
    if isinstance(topic, bytes):
        return topic, partition
    facts = topics.by_name(topic)
    return None if facts is None else (facts.topic_id, partition)


def check_fetch(group: ConsumerGroupData, member_id: str | None, epoch: int) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.NONE
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def owners(members: Iterable[Member], topics: TopicLookup) -> list[PartitionOwner]:
    found = []
    for member in members:
        mine: list[tuple[str, int]] = []
        for topic_id, numbers in by_topic((*member.assigned, *member.revoking)).items():
            facts = topics.by_id(topic_id)
            if facts is not None:
                mine += zip(repeat(facts.name), numbers, strict=False)
        found.append(
            PartitionOwner(
                member.member_id, member.client_id, member.client_host, tuple(sorted(mine))
            )
        )
    return found


def view(group: ConsumerGroupData) -> ConsumerGroupView:
    return ConsumerGroupView(
        group.group_id,
        group.state,
        group.group_epoch,
        group.target_epoch,
        group.assignor or group.config.consumer.assignors[0],
        tuple(
            ConsumerMemberView(
                member.member_id,
                member.instance_id,
                member.rack_id,
                member.epoch,
                member.client_id,
                member.client_host,
                tuple(sorted(member.names)),
                member.pattern,
                by_topic((*member.assigned, *member.revoking)),
                by_topic(member.target),
                member.classic is not None,
            )
            for member in group.members.values()
        ),
    )
