"""CreateTopics (key 19): KIP-4, KIP-525 (what was created), KIP-516 (topic ids from v7).

A replication factor above the number of brokers is accepted, unless a setting asks for Kafka's
check: the store replicates, not the broker, and scripts written for clusters ask for 3.
"""

from __future__ import annotations

from collections import Counter

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    check_allowed,
    check_foreign_stream,
    denial,
    is_cluster_hidden,
    is_hidden,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka import ConfigEntry, describe_topic
from moldau.broker.topics.topics import INTERNAL
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

REPLICATION = 1
DEFAULT_REPLICATION = -1
FACTOR_CHECK_KEY = "moldau.replication.factor.check.enable"
NATIVE_KEY = "moldau.native.key"
STRICT_QUOTA_SINCE = 6  # KIP-599: older versions do not know THROTTLING_QUOTA_EXCEEDED


async def handle(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    by_topic = is_cluster_hidden(broker, call, Operation.CREATE)
    results: list[CreatableTopicResult] = []
    # A topic that is named twice is refused, with one answer.
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[topic.name] > 1:
                text = f"topic {topic.name!r} stands twice in the request"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            if by_topic:
                check_allowed(broker, call, Operation.CREATE, TOPIC, topic.name)
            if any(item.name == NATIVE_KEY and item.value for item in topic.configs):
                check_foreign_stream(broker, call, Operation.CREATE, topic.name)
            if not request.validate_only:
                call.check_mutations(STRICT_QUOTA_SINCE)
            results.append(await _create(broker, call, topic, request.validate_only))
        except MoldauError as fault:
            results.append(_refused(topic, fault))
    await broker.changes_applied()
    return CreateTopicsResponse(topics=results)


async def _create(
    broker: Broker, call: Call, topic: CreatableTopic, validate_only: bool
) -> CreatableTopicResult:
    partitions = topic.num_partitions
    if topic.assignments:
        partitions = _assigned_partitions(broker, topic)
    else:
        _check_replication_factor(broker, topic.replication_factor)
    if topic.name in INTERNAL:
        text = f"{topic.name!r} is reserved for the broker"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    configs = {item.name: item.value for item in topic.configs}
    record = await broker.topics.create(
        topic.name, partitions, configs, validate_only=validate_only
    )
    if not validate_only:
        call.count_mutations(record.partitions, STRICT_QUOTA_SINCE)
        broker.audit.changed(
            call.identity,
            "topic",
            "created",
            topic.name,
            partitions=record.partitions,
            configs=sorted(configs),
        )
    if is_hidden(broker, call, Operation.DESCRIBE_CONFIGS, TOPIC, topic.name):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=record.topic_id,
            error_message=None,
            topic_config_error_code=denial(TOPIC).code,
            configs=None,
        )
    described = describe_topic(record.configs, broker.config)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=record.topic_id,
        error_message=None,
        num_partitions=record.partitions,
        replication_factor=REPLICATION,
        configs=[_config(entry) for entry in described],
    )


def _check_replication_factor(broker: Broker, factor: int) -> None:
    """Raises KafkaError."""
    if factor == 0 or factor < DEFAULT_REPLICATION:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    brokers = len(broker.nodes)
    if factor > brokers and broker.config.get_bool(FACTOR_CHECK_KEY):
        text = (
            f"The target replication factor of {factor} cannot be reached because only {brokers} "
            f"broker(s) are registered, and {FACTOR_CHECK_KEY} is true."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)


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
    """Refuse assignments that Kafka would refuse. The brokers they name are otherwise ignored,
    since a rule spreads the leaders."""
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
        name=topic.name, error_code=code_for(fault), error_message=message_for(fault)
    )
