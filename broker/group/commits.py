"""Rules for offset requests: who may commit and delete, and which offsets have expired.

Pure checks. The coordinator stores what they allow, then applies it to `CommittedOffsets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from moldau.broker.errors import ErrorCode
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.offsets import CommittedOffsets, Committer, TopicPartition
from moldau.broker.group.states import GroupState


def check_unknown_group(committer: Committer) -> ErrorCode:
    """Check a commit to a group that does not exist. A simple consumer's commit creates the group.

    Only OffsetCommit from v9 on knows GROUP_ID_NOT_FOUND.
    """
    if committer.generation_id < 0:
        return ErrorCode.NONE
    if committer.version >= 9 and not committer.is_transactional:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def check_metadata(metadata: str | None, max_size: int) -> ErrorCode:
    """Check the metadata of one partition of a commit. The other partitions are not affected."""
    if metadata is not None and len(metadata) > max_size:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def check_offset_delete(group: GroupBase) -> ErrorCode:
    """Check an OffsetDelete as a whole. Groups of consumers may delete offsets of topics to which
    no member subscribes."""
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.subscribes:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def check_topic_delete(subscribed: frozenset[str] | None, topic: str) -> ErrorCode:
    """Check an OffsetDelete of one topic. `subscribed` comes from `GroupBase.subscribed_topics`."""
    if subscribed is None or topic in subscribed:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def expired_offsets(
    group: GroupBase, offsets: CommittedOffsets, now_ms: int
) -> list[TopicPartition]:
    """Return the offsets whose retention is over, of topics that no member subscribes to. A
    partition for which an open transaction has an offset is left out."""
    subscribed = group.subscribed_topics()
    if subscribed is None or group.expires_from_ms(now_ms) is None:
        return []
    retention_ms = group.config.offsets_retention_ms
    expired = []
    for key, committed in offsets:
        if committed.expire_timestamp_ms is not None:
            is_over = now_ms >= committed.expire_timestamp_ms
        else:
            from_ms = group.expires_from_ms(committed.commit_timestamp_ms)
            is_over = from_ms is not None and now_ms - from_ms >= retention_ms
        if is_over and key.topic not in subscribed and not offsets.is_pending(*key):
            expired.append(key)
    return expired


def is_forgettable(group: GroupBase, offsets: CommittedOffsets) -> bool:
    """True if nothing is left of the group: a `Delete` event can end it."""
    return group.is_forgettable and offsets.is_empty


class InProgress:
    """Commits that are being stored, including those of groups that do not exist yet."""

    def __init__(self) -> None:
        self._partitions: dict[str, Counter[TopicPartition]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._partitions

    def of(self, group_id: str) -> Collection[TopicPartition]:
        return self._partitions.get(group_id, ())

    def begins(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        in_progress = self._partitions.setdefault(group_id, Counter())
        for partition in partitions:
            in_progress[partition] += 1

    def ended(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        in_progress = self._partitions.get(group_id)
        if in_progress is None:
            return
        for partition in partitions:
            in_progress[partition] -= 1
            if in_progress[partition] <= 0:
                del in_progress[partition]
        if not in_progress:
            del self._partitions[group_id]
