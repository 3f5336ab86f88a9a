"""Commits the offsets up to which the lake holds a topic: the broker may then trim it.

The offsets are those of a reserved consumer group: see broker/log/keeping/archived.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from moldau.broker.errors import ErrorCode
from moldau.broker.log.keeping.archived import ARCHIVE_GROUP, archive_note
from moldau.broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.ops.client import Backoff, ClientError, TopicPartition, refusal
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.fetch import FetchSettings, connect

logger = logging.getLogger("moldau.pipeline")

# The last version with a retention time: the commit of a partition that is idle for weeks would
# expire otherwise, and the partition would not be trimmed.
VERSION = 4
RETENTION_MS = 100 * 365 * 86_400_000


def commit_archived_offsets(
    settings: FetchSettings,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes],
    lake: str,
) -> None:
    """Everything below these offsets is in the lake. Raises PipelineError."""
    notes = {topic: archive_note(topic_id, lake) for topic, topic_id in topic_ids.items()}
    left = dict(offsets)
    backoff = Backoff(settings.patience_s)
    while left:
        try:
            _commit(settings, left, notes)
        except ClientError as fault:
            logger.info("committing archived offsets: %s; retrying", fault)
            if not backoff.wait():
                raise PipelineError(
                    "the records are in the lake, but the archived offsets could not be committed "
                    f"to the broker: {fault}; run the archiver again when the broker is up"
                ) from fault


def _commit(
    settings: FetchSettings, left: dict[TopicPartition, int], notes: Mapping[str, str]
) -> None:
    """Remove from `left` the partitions that the broker has accepted, or does not have."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for partition, offset in left.items():
        topics.setdefault(partition.topic, []).append(
            OffsetCommitRequestPartition(
                partition.partition, offset, committed_metadata=notes[partition.topic]
            )
        )
    request = OffsetCommitRequest(
        ARCHIVE_GROUP,
        retention_time_ms=RETENTION_MS,
        topics=[OffsetCommitRequestTopic(name, partitions=p) for name, p in topics.items()],
    )
    with connect(settings) as cluster:
        answer = cluster.call(request, cluster.coordinator(ARCHIVE_GROUP), VERSION)
    refused = ErrorCode.NONE
    for topic in answer.topics:
        for one in topic.partitions:
            # A partition that was deleted since has nothing to trim.
            if one.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                left.pop(TopicPartition(topic.name, one.partition_index), None)
            else:
                refused = one.error_code
    if refused:
        raise refusal(f"group {ARCHIVE_GROUP}", refused)
