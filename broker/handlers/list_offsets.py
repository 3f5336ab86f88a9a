"""ListOffsets (key 2): earliest, latest, by timestamp, largest timestamp.

KIP-320: v4 and later return the leader epoch of the record; for the latest offset, the current one.
KIP-734: -3 is the largest timestamp. KIP-405 and later: -4, earliest local, is the log start; -5
and -6 ask about a remote tier, and get offset -1, as in Kafka for a topic without one. KIP-98: with
read_committed no offset at or above the last stable offset is returned, and the latest is the last
stable offset itself.
"""

from __future__ import annotations

import asyncio

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, MoldauError, read_code_for
from moldau.broker.handlers.details.authorization import TOPIC, TOPIC_DENIED, is_denied
from moldau.broker.handlers.details.delayed_fetch import READ_COMMITTED
from moldau.broker.handlers.details.lookup import (
    Found,
    check_epoch,
    check_found,
    current_log,
    find_topics,
)
from moldau.broker.log.log import OffsetAndTimestamp
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
# Every reader may know where a log begins and ends, also if transactions are open.
ENDS = frozenset({LATEST, EARLIEST, EARLIEST_LOCAL})
# Clients of older versions do not expect these answers.
FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(broker: Broker, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    topics = []
    committed = request.isolation_level == READ_COMMITTED
    by_topic = _by_topic(request)
    found = await find_topics(broker, by_topic)
    for name, partitions in by_topic.items():
        if is_denied(broker, call, Operation.DESCRIBE, TOPIC, name):
            refused = [
                ListOffsetsPartitionResponse(items[0].partition_index, TOPIC_DENIED)
                for items in partitions
            ]
            topics.append(ListOffsetsTopicResponse(name, refused))
            continue
        # No task for partitions that do not exist: a request may name any number of them.
        answers = [_refused(items, found[name], call.header.api_version) for items in partitions]
        asked = [at for at, answer in enumerate(answers) if not answer.error_code]
        if asked:
            answered = await asyncio.gather(
                *(
                    _answer(broker, found[name], partitions[at][0], committed=committed)
                    for at in asked
                )
            )
            for at, answer in zip(asked, answered, strict=True):
                answers[at] = answer
        topics.append(ListOffsetsTopicResponse(name, answers))
    return ListOffsetsResponse(topics=topics)


def _by_topic(request: ListOffsetsRequest) -> dict[str, list[list[ListOffsetsPartition]]]:
    """The partitions asked for, by topic: each a list with one item, or more if it is repeated."""
    topics: dict[str, dict[int, list[ListOffsetsPartition]]] = {}
    for topic in request.topics:
        partitions = topics.setdefault(topic.name, {})
        for item in topic.partitions:
            partitions.setdefault(item.partition_index, []).append(item)
    return {name: list(partitions.values()) for name, partitions in topics.items()}


def _refused(
    items: list[ListOffsetsPartition], found: Found, version: int
) -> ListOffsetsPartitionResponse:
    """The error, if it is known without reading the log."""
    item = items[0]
    answer = ListOffsetsPartitionResponse(item.partition_index)
    if len(items) > 1:
        # Named twice, refused as in Kafka: the two might ask for different offsets.
        answer.error_code = ErrorCode.INVALID_REQUEST
    elif item.timestamp < 0 and version < FIRST_VERSIONS.get(item.timestamp, version + 1):
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
    else:
        try:
            check_found(found, item.partition_index)
        except MoldauError as fault:
            answer.error_code = read_code_for(fault)
    return answer


async def _answer(
    broker: Broker, found: Found, item: ListOffsetsPartition, *, committed: bool
) -> ListOffsetsPartitionResponse:
    try:
        return await _find(broker, found, item, committed=committed)
    except MoldauError as fault:
        return ListOffsetsPartitionResponse(item.partition_index, read_code_for(fault))


async def _find(
    broker: Broker, topic: Found, item: ListOffsetsPartition, *, committed: bool
) -> ListOffsetsPartitionResponse:
    log = await current_log(broker, topic, item.partition_index)
    check_epoch(log, item.current_leader_epoch)
    wanted = item.timestamp
    *_, stable = log.bounds()
    found: OffsetAndTimestamp | None
    if wanted == LATEST:
        found = OffsetAndTimestamp(stable if committed else log.end, -1)
    elif wanted in (EARLIEST, EARLIEST_LOCAL):
        found = OffsetAndTimestamp(log.earliest, -1)
    elif wanted == MAX_TIMESTAMP:
        found = await log.offset_of_largest_timestamp()
    elif wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        found = None
    else:
        found = await log.offset_for_timestamp(wanted)
    if committed and wanted not in ENDS and found is not None and found.offset >= stable:
        found = None
    if found is None:
        return ListOffsetsPartitionResponse(item.partition_index, leader_epoch=-1)
    epoch = log.leader_epoch if wanted == LATEST else log.epochs.number_at(found.offset)
    return ListOffsetsPartitionResponse(
        item.partition_index, 0, found.timestamp, found.offset, epoch
    )
