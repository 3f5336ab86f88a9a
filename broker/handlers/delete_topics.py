"""DeleteTopics (key 20): by name, and from v6 on by id (KIP-516)."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from broker.wire.schema import NO_UUID


async def handle(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    results = []
    for item in wanted:
        try:
            results.append(await _delete(broker, item))
        except MoldauError as fault:
            results.append(
                DeletableTopicResult(item.name, item.topic_id, code_for(fault), str(fault))
            )
    await broker.changes_applied()
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, item: DeleteTopicState) -> DeletableTopicResult:
    if not broker.config.get_bool("delete.topic.enable"):
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    name = item.name
    if item.topic_id != NO_UUID:
        if name is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "give a name or an id, not both")
        topic = await broker.topics.find_id(item.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = topic.name
    if name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "neither name nor id")
    record = await broker.topics.delete(name)
    return DeletableTopicResult(name, record.topic_id)
