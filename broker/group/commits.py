"""Rules for offset requests: who may commit and delete, and which offsets have expired.

Pure checks. The coordinator stores what they allow, then applies it to `CommittedOffsets`.
"""

from __future__ import annotations

from broker.errors import ErrorCode
from broker.group.classic.group import Group
from broker.group.offsets import CommittedOffsets, TopicPartition
from broker.group.states import GroupState
from broker.wire import consumer_protocol
from broker.wire.consumer_protocol import CONSUMER


def check_commit(
    group: Group,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    now_ms: int,
    *,
    transactional: bool = False,
) -> ErrorCode:
    """Whether this member may commit offsets now. If so, its session is renewed.

    A simple consumer has no member id and a negative generation: only an Empty group accepts its
    commits. Transactions have their own fencing, so they may commit in CompletingRebalance, and old
    clients send no member with them.
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


def check_unknown_group(generation_id: int, *, knows_group_id_not_found: bool) -> ErrorCode:
    """A commit to a group that does not exist. That of a simple consumer creates the group.

    `knows_group_id_not_found`: OffsetCommit from v9 on. TxnOffsetCommit: never.
    """
    if generation_id < 0:
        return ErrorCode.NONE
    if knows_group_id_not_found:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def check_metadata(metadata: str | None, max_size: int) -> ErrorCode:
    """For one partition of a commit; it does not affect the others."""
    if metadata is not None and len(metadata) > max_size:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def check_offset_delete(group: Group) -> ErrorCode:
    """OffsetDelete as a whole. Consumer groups allow it for topics they do not subscribe to."""
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def check_topic_delete(subscribed: frozenset[str] | None, topic: str) -> ErrorCode:
    """OffsetDelete for one topic; `subscribed` is the result of `subscribed_topics`."""
    if subscribed is None or topic in subscribed:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics all members subscribe to. None: unknown, any topic may be among them.

    Groups of another protocol type than `consumer` subscribe to nothing.
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


def _subscriptions(group: Group) -> set[bytes]:
    """Distinct metadata: in most groups it is the same for all members.

    A member that joined again may not support the protocol of the last generation: then the
    metadata of its other protocols counts.
    """
    subscriptions: set[bytes] = set()
    for member in group.roster.by_id.values():
        in_use = [metadata for name, metadata in member.protocols if name == group.protocol_name]
        subscriptions.update(in_use or [metadata for _, metadata in member.protocols])
    return subscriptions


def expired_offsets(group: Group, offsets: CommittedOffsets, now_ms: int) -> list[TopicPartition]:
    """The offsets whose retention is over.

    It counts from when a group became Empty; for simple consumers from the commit; for a Stable
    group from the commit too, but only for topics it no longer subscribes to. Nothing expires
    during a rebalance, or while an open transaction has an offset of the partition.
    """
    is_simple = group.protocol_type is None
    is_empty = group.state is GroupState.EMPTY
    if not (is_empty or (group.state is GroupState.STABLE and group.protocol_type == CONSUMER)):
        return []
    subscribed = subscribed_topics(group)
    if subscribed is None:
        return []
    retention_ms = group.config.offsets_retention_ms
    expired = []
    for key, committed in offsets:
        if committed.expire_timestamp_ms is not None:
            is_over = now_ms >= committed.expire_timestamp_ms
        elif is_empty and not is_simple:
            is_over = now_ms - group.state_since_ms >= retention_ms
        else:
            is_over = now_ms - committed.commit_timestamp_ms >= retention_ms
        if is_over and key.topic not in subscribed and not offsets.is_pending(*key):
            expired.append(key)
    return expired


def is_forgettable(group: Group, offsets: CommittedOffsets) -> bool:
    """Nothing is left of the group: it can be ended with a `Delete` event."""
    return group.state is GroupState.EMPTY and not group.roster.pending and offsets.is_empty
