"""Tells the broker what the lake holds, so that it may let go of it.

By committing offsets for a reserved group: see broker/log/archived.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from broker.errors import ErrorCode
from broker.log.archived import ARCHIVE_GROUP, archive_note
from broker.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ops.client import ClientError, TopicPartition, refusal
from ops.pipeline.errors import PipelineError
from ops.pipeline.source.fetch import FetchSettings, connect

log = logging.getLogger("moldau.pipeline")

# The last version in which a commit says how long it is kept: a partition that is archived and
# then idle for weeks would be forgotten otherwise, and never trimmed.
VERSION = 4
KEPT_MS = 100 * 365 * 86_400_000
_PAUSE_S = 0.3


def publish(
    settings: FetchSettings,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes],
    lake: str,
) -> None:
    """Say that everything below these offsets is in the lake. Raises PipelineError."""
    notes = {topic: archive_note(topic_id, lake) for topic, topic_id in topic_ids.items()}
    left = dict(offsets)
    deadline = time.monotonic() + settings.patience_s
    while left:
        try:
            _commit(settings, left, notes)
        except ClientError as fault:
            if time.monotonic() > deadline:
                raise PipelineError(
                    "the lake has everything, but the broker could not be told so that it may "
                    f"trim it: {fault}; run the archiver again when the broker is well"
                ) from fault
            log.info("telling the broker what is archived: %s; trying again", fault)
            time.sleep(_PAUSE_S)


def _commit(
    settings: FetchSettings, left: dict[TopicPartition, int], notes: Mapping[str, str]
) -> None:
    """Removes from `left` what the broker has taken, or does not have."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, offset in left.items():
        topics.setdefault(place.topic, []).append(
            OffsetCommitRequestPartition(
                place.partition, offset, committed_metadata=notes[place.topic]
            )
        )
    request = OffsetCommitRequest(
        ARCHIVE_GROUP,
        retention_time_ms=KEPT_MS,
        topics=[OffsetCommitRequestTopic(name, partitions=p) for name, p in topics.items()],
    )
    with connect(settings) as cluster:
        answer = cluster.call(request, cluster.coordinator(ARCHIVE_GROUP), VERSION)
    refused = ErrorCode.NONE
    for topic in answer.topics:
        for partition in topic.partitions:
            # One that was deleted meanwhile has nothing to trim.
            if partition.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                left.pop(TopicPartition(topic.name, partition.partition_index), None)
            else:
                refused = partition.error_code
    if refused:
        raise refusal(f"group {ARCHIVE_GROUP}", refused)
