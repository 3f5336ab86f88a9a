"""DeleteTopics (key 20): by name, and from v6 on by id (KIP-516)."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    denial,
    is_cluster_hidden,
    is_denied,
    is_hidden,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.broker.wire.schema import NO_UUID

STRICT_QUOTA_SINCE = 5  # KIP-599: older versions do not know THROTTLING_QUOTA_EXCEEDED


async def handle(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    # By name, also if the request gives an id; by id if there is no such topic.
    named: dict[str | bytes, list[DeleteTopicState]] = {}
    ids = [("", item.topic_id) for item in wanted if item.topic_id != NO_UUID]
    if ids:
        await broker.topics.find_each(ids)
    for item in wanted:
        named.setdefault(_name_of(broker, item) or item.topic_id, []).append(item)
    by_topic = is_cluster_hidden(broker, call, Operation.DELETE)
    results = []
    for name, items in named.items():
        # Only clients that may describe a topic learn that it exists, and the name of an id.
        if (
            by_topic
            and isinstance(name, str)
            and is_denied(broker, call, Operation.DELETE, TOPIC, name)
        ):
            hides = is_hidden(broker, call, Operation.DESCRIBE, TOPIC, name)
            results += [_denied(item, None if hides else name) for item in items]
            continue
        try:
            if len(items) > 1:
                # It gets one answer and is not deleted, as in Kafka.
                text = f"topic {name!r} is named more than once in the request"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            result = await _delete(broker, items[0], call)
            results.append(result)
            broker.audit.changed(call.identity, "topic", "deleted", result.name or "")
        except MoldauError as fault:
            shown = name if isinstance(name, str) else None
            topic_id = max(item.topic_id for item in items)
            results.append(
                DeletableTopicResult(shown, topic_id, code_for(fault), message_for(fault))
            )
    await broker.changes_applied()
    return DeleteTopicsResponse(responses=results)


def _denied(item: DeleteTopicState, name: str | None) -> DeletableTopicResult:
    refusal = denial(TOPIC)
    return DeletableTopicResult(
        name if item.name is None else item.name, item.topic_id, refusal.code, refusal.message
    )


def _name_of(broker: Broker, item: DeleteTopicState) -> str | None:
    if item.name is not None or item.topic_id == NO_UUID:
        return item.name
    topic = broker.topics.by_id(item.topic_id)
    return None if topic is None else topic.name


async def _delete(broker: Broker, item: DeleteTopicState, call: Call) -> DeletableTopicResult:
    if not broker.config.get_bool("delete.topic.enable"):
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    name = item.name
    if item.topic_id != NO_UUID:
        if name is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "give a name or an id, not both")
        topic = broker.topics.by_id(item.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = topic.name
    if name is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "a topic has neither a name nor an id: give one of them"
        )
    call.check_mutations(STRICT_QUOTA_SINCE)
    record = await broker.topics.delete(name)
    call.count_mutations(record.partitions, STRICT_QUOTA_SINCE)
    return DeletableTopicResult(name, record.topic_id)
