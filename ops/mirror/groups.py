"""Committed offsets of groups: the same numbers here as at the source, since offsets are the same.

The leader epoch of a commit is not copied: the epochs of the source mean nothing here. A group that
has members here is left alone: its consumers were moved, and commit for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.ops.client import ClientError, Cluster, TopicPartition, refusal
from moldau.ops.mirror.plan import Commit, offsets_to_commit
from moldau.ops.operations.groups import committed_offsets, list_groups

# A coordinator refuses the commits of others while a group has members.
_ACTIVE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
_KINDS = ("classic", "consumer", "")


class GroupMirror:
    """One group."""

    def __init__(self) -> None:
        self.offsets = 0  # how many of the source's are here
        self.waiting = 0  # for their records
        self.is_active_here = False
        self.why: str | None = None  # its offsets could not be copied
        self.written: dict[TopicPartition, Commit] = {}


class Groups:
    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.by_id: dict[str, GroupMirror] = {}

    def sync(
        self, source: Cluster, target: Cluster, end_of: Callable[[TopicPartition], int | None]
    ) -> None:
        """Copy what the groups of the source have committed since. `end_of`: where a mirrored log
        ends here. Raises ClientError when a cluster cannot be reached."""
        for listed in list_groups(source):
            if listed.type.lower() not in _KINDS or not self._pattern.fullmatch(listed.group):
                continue
            group = self.by_id.get(listed.group) or GroupMirror()
            try:
                _sync_group(source, target, listed.group, group, end_of)
                group.why = None
            except ClientError as fault:
                if not fault.code:
                    raise
                group.why = str(fault)
            if group.offsets or group.waiting or group.why:
                self.by_id[listed.group] = group


def _sync_group(
    source: Cluster,
    target: Cluster,
    group_id: str,
    group: GroupMirror,
    end_of: Callable[[TopicPartition], int | None],
) -> None:
    there = {
        place: Commit(one.offset, one.metadata)
        for place, one in committed_offsets(source, group_id).items()
        if end_of(place) is not None
    }
    if not there:
        group.offsets = group.waiting = 0
        return
    here = {place: one.offset for place, one in committed_offsets(target, group_id).items()}
    commits = offsets_to_commit(there, here, group.written, end_of)
    if commits:
        group.is_active_here = not _commit(target, group_id, commits)
        if not group.is_active_here:
            group.written |= commits
            here |= {place: one.offset for place, one in commits.items()}
    group.offsets = sum(here.get(place) == one.offset for place, one in there.items())
    group.waiting = sum((end_of(place) or 0) < one.offset for place, one in there.items())


def _commit(cluster: Cluster, group_id: str, commits: dict[TopicPartition, Commit]) -> bool:
    """False: the group has members."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, one in commits.items():
        topics.setdefault(place.topic, []).append(
            OffsetCommitRequestPartition(place.partition, one.offset, -1, one.metadata)
        )
    listed = [OffsetCommitRequestTopic(name, partitions=one) for name, one in topics.items()]
    request = OffsetCommitRequest(group_id, topics=listed)
    answer = cluster.call_coordinator(group_id, request, _first_error)
    code = _first_error(answer)
    if code in _ACTIVE:
        return False
    if code:
        raise refusal(f"group {group_id}", code)
    return True


def _first_error(answer: OffsetCommitResponse) -> int:
    codes = (one.error_code for topic in answer.topics for one in topic.partitions)
    return next((code for code in codes if code), 0)
