"""CreatePartitions (key 37, KIP-195): raise the number of partitions of a topic."""

from __future__ import annotations

from collections import Counter

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.create_topics import check_replicas
from moldau.broker.handlers.details.authorization import TOPIC, check_allowed, check_foreign_stream
from moldau.broker.handlers.details.lookup import Found, find_topics, raise_fault
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

STRICT_QUOTA_SINCE = 3  # KIP-599: older versions do not know THROTTLING_QUOTA_EXCEEDED


async def handle(
    broker: Broker, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    results = []
    named = Counter(item.name for item in request.topics)
    found = await find_topics(broker, named)
    # A topic that is named twice is refused, with one answer.
    for item in {item.name: item for item in request.topics}.values():
        try:
            if named[item.name] > 1:
                text = f"topic {item.name!r} is named more than once in the request"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            check_allowed(broker, call, Operation.ALTER, TOPIC, item.name)
            await _raise(broker, found[item.name], item, call, request.validate_only)
            if not request.validate_only:
                who = call.identity
                broker.audit.changed(who, "topic", "altered", item.name, partitions=item.count)
            results.append(CreatePartitionsTopicResult(item.name))
        except MoldauError as fault:
            results.append(
                CreatePartitionsTopicResult(item.name, code_for(fault), message_for(fault))
            )
    await broker.changes_applied()
    return CreatePartitionsResponse(results=results)


async def _raise(
    broker: Broker, found: Found, item: CreatePartitionsTopic, call: Call, validate_only: bool
) -> None:
    topic = raise_fault(found)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.native and topic.config.native_key:
        check_foreign_stream(broker, call, Operation.ALTER, item.name)
    if item.assignments is not None and item.count > topic.partitions:
        added = item.count - topic.partitions
        if len(item.assignments) != added:
            text = f"{len(item.assignments)} assignments for {added} new partitions"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        check_replicas(broker, [assignment.broker_ids for assignment in item.assignments])
    if not validate_only:
        call.check_mutations(STRICT_QUOTA_SINCE)
    before = topic.partitions
    await broker.topics.add_partitions(item.name, item.count, validate_only=validate_only)
    if not validate_only:
        call.count_mutations(item.count - before, STRICT_QUOTA_SINCE)
