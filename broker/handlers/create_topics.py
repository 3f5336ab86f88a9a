"""CreateTopics (key 19): KIP-4, KIP-525 (what was created), KIP-516 (topic ids from v7).

Any replication factor is accepted: the store replicates, not the broker.
"""

from __future__ import annotations

from collections import Counter

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker
from broker.log.topics import INTERNAL
from broker.server.connection import Call
from broker.settings.kafka import ConfigEntry, describe_topic
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

REPLICATION = 1


async def handle(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    for topic in request.topics:
        if named[topic.name] > 1:
            if not any(result.name == topic.name for result in results):
                text = f"topic {topic.name!r} stands twice in the request"
                results.append(_refused(topic, KafkaError(ErrorCode.INVALID_REQUEST, text)))
            continue
        try:
            results.append(await _create(broker, topic, request.validate_only))
        except MoldauError as fault:
            results.append(_refused(topic, fault))
    await broker.changes_applied()
    return CreateTopicsResponse(topics=results)


async def _create(
    broker: Broker, topic: CreatableTopic, validate_only: bool
) -> CreatableTopicResult:
    partitions = topic.num_partitions
    if topic.assignments:
        partitions = _assigned_partitions(broker, topic)
    elif topic.replication_factor == 0 or topic.replication_factor < -1:
        text = f"replication factor {topic.replication_factor}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if topic.name in INTERNAL:
        text = f"{topic.name!r} is reserved for the broker"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    configs = {item.name: item.value for item in topic.configs}
    record = await broker.topics.create(
        topic.name, partitions, configs, validate_only=validate_only
    )
    described = describe_topic(record.configs, broker.config)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=record.topic_id,
        num_partitions=record.partitions,
        replication_factor=REPLICATION,
        configs=[_config(entry) for entry in described],
    )


def _assigned_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """Manual assignments only determine the count: the broker spreads the leaders."""
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        text = "with assignments, neither partitions nor replication factor can be given"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    indexes = sorted(item.partition_index for item in topic.assignments)
    if indexes != list(range(len(indexes))):
        text = f"partitions {indexes} are not consecutive from 0"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    check_replicas(broker, [item.broker_ids for item in topic.assignments])
    return len(indexes)


def check_replicas(broker: Broker, assignments: list[list[int]]) -> None:
    """Refuse assignments that Kafka would refuse; which brokers they name is not looked at
    further, as leaders are spread by a rule."""
    known = set(broker.nodes)
    for replicas in assignments:
        problem = None
        if not replicas:
            problem = "has no replicas"
        elif len(set(replicas)) != len(replicas):
            problem = f"repeats a broker: {replicas}"
        elif len(replicas) != len(assignments[0]):
            problem = f"has {len(replicas)} replicas, the first one has {len(assignments[0])}"
        elif unknown := set(replicas) - known:
            problem = f"names brokers that do not exist: {sorted(unknown)}"
        if problem is not None:
            text = f"an assignment {problem}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _config(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
    )


def _refused(topic: CreatableTopic, fault: BaseException) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=code_for(fault), error_message=str(fault)
    )
