"""Metadata (key 3): brokers, topics and the leaders of their partitions; auto-creates topics.

KIP-4: an empty list asks for none from v1 on, for all in v0. KIP-204: v4 may forbid auto-creation.
KIP-320: leader epochs from v7. KIP-516: topic ids from v10, and look-ups by them from v12 on.
"""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.authorized_operations import NOT_REQUESTED, ON_CLUSTER, ON_TOPIC
from broker.handlers.context import Broker
from broker.log.topics import INTERNAL, Topic, check_name
from broker.server.connection import Call
from broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from broker.wire.schema import NO_UUID


async def handle(broker: Broker, request: MetadataRequest, call: Call) -> MetadataResponse:
    wants_all = request.topics is None or (call.header.api_version == 0 and not request.topics)
    if wants_all:
        topics = [_describe(broker, topic) for topic in broker.topics.all()]
    else:
        changes = broker.store.topics.unapplied
        last_before = changes.last_number
        # A topic named twice is answered once, as in Kafka.
        wanted = {(item.name, item.topic_id): item for item in request.topics or ()}
        topics = [await _asked(broker, item, request) for item in wanted.values()]
        if changes.last_number != last_before:  # topics were created
            await broker.changes_applied()
    if request.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                topic.topic_authorized_operations = ON_TOPIC
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(b.node_id, b.host, b.port)
            for b in broker.endpoints(call.identity.listener)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes[0],
        topics=topics,
        cluster_authorized_operations=(
            ON_CLUSTER if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


async def _asked(
    broker: Broker, item: MetadataRequestTopic, request: MetadataRequest
) -> MetadataResponseTopic:
    try:
        if item.topic_id != NO_UUID:
            topic = await broker.topics.find_id(item.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            name = item.name or ""
            check_name(name)
            may_create = (
                broker.auto_create and request.allow_auto_topic_creation and name not in INTERNAL
            )
            topic = await _find_or_create(broker, name, may_create)
    except MoldauError as fault:
        # Clients retry after LEADER_NOT_AVAILABLE; they may not expect a storage error here.
        code = code_for(fault)
        if not isinstance(fault, KafkaError):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponseTopic(code, item.name, item.topic_id, item.name in INTERNAL)
    return _describe(broker, topic)


async def _find_or_create(broker: Broker, name: str, may_create: bool) -> Topic:
    topic = await broker.topics.find(name)
    if topic is None and may_create:
        try:
            await broker.topics.create(name, -1, {})
        except KafkaError as refusal:
            if refusal.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = await broker.topics.find(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _describe(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    partitions = []
    epoch_of = broker.logs.leader_epochs.of_partition
    for partition in range(topic.partitions):
        leader = broker.leader(topic, partition)
        epoch = epoch_of(topic, partition)
        partitions.append(
            MetadataResponsePartition(0, partition, leader, epoch, [leader], [leader], [])
        )
    return MetadataResponseTopic(0, topic.name, topic.topic_id, topic.name in INTERNAL, partitions)
