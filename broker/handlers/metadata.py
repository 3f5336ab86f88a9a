"""Metadata (key 3): brokers, topics and the leaders of their partitions; auto-creates topics.

KIP-4: an empty list asks for none from v1 on, for all in v0. KIP-204: v4 may forbid auto-creation.
KIP-320: leader epochs from v7. KIP-516: topic ids from v10, and look-ups by them from v12 on.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, StoreFault, code_for
from moldau.broker.handlers.details.authorization import (
    NOT_REQUESTED,
    TOPIC,
    check_allowed,
    cluster_operations,
    denial,
    is_cluster_hidden,
    is_denied,
    is_hidden,
    operations,
)
from moldau.broker.handlers.details.lookup import NO_LEADER, Found, raise_fault
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import INTERNAL, NEVER_TOPICS, Topic, check_name
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.broker.wire.schema import NO_UUID


async def handle(broker: Broker, request: MetadataRequest, call: Call) -> MetadataResponse:
    wants_all = request.topics is None or (call.header.api_version == 0 and not request.topics)
    checked = broker.logs.checked
    if wants_all:
        if not checked.is_complete:
            await checked.wait_for(None)
        topics = [
            _describe(broker, topic)
            for topic in broker.topics.all()
            if not is_hidden(broker, call, Operation.DESCRIBE, TOPIC, topic.name)
        ]
    else:
        changes = broker.store.topics.change_acks
        last_before = changes.last_number
        # A topic that is named twice gets one answer, as in Kafka.
        wanted = {(item.name, item.topic_id): item for item in request.topics or ()}
        wanted_by = [(name or "", topic_id) for name, topic_id in wanted]
        found: Sequence[Found]
        try:
            found = await broker.topics.find_each(list(wanted_by))
        except StoreFault as fault:
            found = [broker.topics.known(*each) or fault for each in wanted_by]
        asked = [
            await _asked(broker, call, item, topic, request)
            for item, topic in zip(wanted.values(), found, strict=True)
        ]
        if not checked.is_complete:
            await checked.wait_for([one for one in asked if isinstance(one, Topic)])
        topics = [_describe(broker, one) if isinstance(one, Topic) else one for one in asked]
        if changes.last_number != last_before:  # topics were created
            await broker.changes_applied()
    if request.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                name = topic.name or ""
                topic.topic_authorized_operations = operations(broker, call, TOPIC, name)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(b.node_id, b.host, b.port)
            for b in broker.endpoints(call.identity.listener)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes[0],
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(broker, call)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED
        ),
    )


async def _asked(
    broker: Broker, call: Call, item: MetadataRequestTopic, found: Found, request: MetadataRequest
) -> Topic | MetadataResponseTopic:
    """The topic, or the error."""
    try:
        if item.topic_id != NO_UUID:
            topic = raise_fault(found)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            if is_denied(broker, call, Operation.DESCRIBE, TOPIC, topic.name):
                # The client knows the id, and must not learn the name.
                return MetadataResponseTopic(denial(TOPIC).code, None, item.topic_id)
        else:
            name = item.name or ""
            # The same error if it does not exist: only who may describe it learns that.
            if is_denied(broker, call, Operation.DESCRIBE, TOPIC, name):
                return MetadataResponseTopic(denial(TOPIC).code, item.name)
            check_name(name)
            if name in NEVER_TOPICS and request.allow_auto_topic_creation:
                # Not "unknown": a producer would ask again until its time is up. Kafka refuses
                # what it sends to these topics with the same error.
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            may_create = (
                broker.auto_create and request.allow_auto_topic_creation and name not in INTERNAL
            )
            topic = raise_fault(found)
            if topic is None:
                topic = await _create(broker, call, name, may_create)
    except MoldauError as fault:
        # Clients retry after LEADER_NOT_AVAILABLE; they may not expect a storage error here.
        code = code_for(fault)
        if not isinstance(fault, KafkaError):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponseTopic(code, item.name, item.topic_id, item.name in INTERNAL)
    return topic


async def _create(broker: Broker, call: Call, name: str, may_create: bool) -> Topic:
    topic = None
    if may_create:
        if is_cluster_hidden(broker, call, Operation.CREATE):
            check_allowed(broker, call, Operation.CREATE, TOPIC, name)
        try:
            await broker.topics.create(name, -1, {})
            broker.audit.changed(call.identity, "topic", "created", name)
        except KafkaError as refusal:
            if refusal.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = await broker.topics.find(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _describe(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    partitions = []
    epoch_of, checked = broker.logs.leader_epochs.of_partition, broker.logs.checked
    is_complete = checked.is_complete
    for partition in range(topic.partitions):
        leader = broker.leader(topic, partition)
        epoch = epoch_of(topic, partition)
        one = MetadataResponsePartition(0, partition, leader, epoch, [leader], [leader], [])
        if not is_complete and not checked.has(topic, partition):
            # The epoch may be later. Clients keep the one they know, and ask again.
            one.error_code, one.leader_id = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        partitions.append(one)
    return MetadataResponseTopic(0, topic.name, topic.topic_id, topic.name in INTERNAL, partitions)
