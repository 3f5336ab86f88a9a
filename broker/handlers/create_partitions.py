"""CreatePartitions (key 37, KIP-195): raise the number of a topic's partitions."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    broker: Broker, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    results = []
    for item in request.topics:
        try:
            await _raise(broker, item, request.validate_only)
            results.append(CreatePartitionsTopicResult(item.name))
        except MoldauError as fault:
            results.append(CreatePartitionsTopicResult(item.name, code_for(fault), str(fault)))
    await broker.changes_applied()
    return CreatePartitionsResponse(results=results)


async def _raise(broker: Broker, item: CreatePartitionsTopic, validate_only: bool) -> None:
    if item.assignments is not None:
        topic = await broker.topics.find(item.name)
        added = item.count - (topic.partitions if topic is not None else 0)
        known = {node.node_id for node in broker.brokers}
        named = {node for assignment in item.assignments for node in assignment.broker_ids}
        if len(item.assignments) != added or not known.issuperset(named):
            text = f"{len(item.assignments)} assignments for {added} new partitions"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    await broker.topics.add_partitions(item.name, item.count, validate_only=validate_only)
