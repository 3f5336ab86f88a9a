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
    # By name, whichever way a topic is given; by id where there is none of that id.
    named: dict[str | bytes, list[DeleteTopicState]] = {}
    for item in wanted:
        named.setdefault(await _name_of(broker, item) or item.topic_id, []).append(item)
    results = []
    for name, items in named.items():
        try:
            if len(items) > 1:
                # Answered once, and not deleted: as in Kafka.
                text = f"topic {name!r} is named more than once in the request"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            results.append(await _delete(broker, items[0]))
        except MoldauError as fault:
            shown = name if isinstance(name, str) else None
            topic_id = max(item.topic_id for item in items)
            results.append(DeletableTopicResult(shown, topic_id, code_for(fault), str(fault)))
    await broker.changes_applied()
    return DeleteTopicsResponse(responses=results)


async def _name_of(broker: Broker, item: DeleteTopicState) -> str | None:
    if item.name is not None or item.topic_id == NO_UUID:
        return item.name
    topic = await broker.topics.find_id(item.topic_id)
    return None if topic is None else topic.name


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
