"""Offset commits to a classic group, its subscriptions, and when its offsets expire."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.group.classic.group_data import GroupData
from moldau.broker.group.states import GroupState
from moldau.broker.wire import consumer_protocol
from moldau.broker.wire.consumer_protocol import CONSUMER


def check_commit(
    group: GroupData,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    now_ms: int,
    *,
    transactional: bool = False,
) -> ErrorCode:
    """Check whether this member may commit offsets now. If so, renew its session.

    A simple consumer has no member id and a negative generation: only an Empty group accepts its
    commits. Transactions have their own fencing, so they may commit in CompletingRebalance, and old
    clients send no member id with them.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation_id < 0 and not member_id and instance_id is None:
        return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.NONE if transactional else ErrorCode.REBALANCE_IN_PROGRESS
    # In Stable and PreparingRebalance a commit counts as a heartbeat.
    member = group.roster.by_id[member_id]
    member.session_deadline_ms = now_ms + member.session_timeout_ms
    return ErrorCode.NONE


def subscribed_topics(group: GroupData) -> frozenset[str] | None:
    """Return the topics that members subscribe to, or None if unknown: it may be any topic.

    Groups whose protocol type is not `consumer` subscribe to nothing.
    """
    if group.protocol_type != CONSUMER:
        return frozenset()
    topics: set[str] = set()
    for metadata in _subscriptions(group):
        parsed = consumer_protocol.subscribed_topics(metadata)
        if parsed is None:
            return None
        topics |= parsed
    return frozenset(topics)


def _subscriptions(group: GroupData) -> set[bytes]:
    """Return the distinct metadata of the members: in most groups it is the same for all.

    A member that joined again may not support the protocol of the last generation. Then the
    metadata of its other protocols counts.
    """
    subscriptions: set[bytes] = set()
    for member in group.roster.by_id.values():
        in_use = [metadata for name, metadata in member.protocols if name == group.protocol_name]
        subscriptions.update(in_use or [metadata for _, metadata in member.protocols])
    return subscriptions


def expires_from_ms(group: GroupData, commit_ms: int) -> int | None:
    """Return when retention starts: when the group became Empty, or at the commit for simple
    consumers and for Stable groups of consumers. Nothing expires during a rebalance."""
    if group.state is GroupState.EMPTY:
        return commit_ms if group.protocol_type is None else group.state_since_ms
    is_stable = group.state is GroupState.STABLE
    return commit_ms if is_stable and group.protocol_type == CONSUMER else None
