"""ACLs with real clients: their own calls, and how they take a denial."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from broker.security.acl import Acl
from broker.security.resources import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.support.identified import IdentifiedClient
from tests.support.running import Broker, running_broker

# Neither declares what it exports.
confluent: Any = importlib.import_module("confluent_kafka.admin")
kafka_python: Any = importlib.import_module("kafka.admin")

ANONYMOUS = "User:ANONYMOUS"  # who clients of a plaintext port are
TIMEOUT_S = 30


def allow(operation: Operation, resource: ResourceType, name: str) -> Acl:
    literal, allowed = PatternType.LITERAL, Permission.ALLOW
    return Acl(resource, name, literal, ANONYMOUS, "*", operation, allowed)


ADMINISTER = [allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"authorizer.class.name": "standard", "group.initial.rebalance.delay.ms": 100}
    with running_broker(workers=2, broker=settings) as started:
        yield started


@pytest.fixture
def operator(broker: Broker) -> Iterator[IdentifiedClient]:
    with IdentifiedClient(broker) as client:
        yield client
        client.delete_of(ANONYMOUS)


def create_topic(operator: IdentifiedClient, name: str) -> None:
    (answer,) = operator.call(CreateTopicsRequest([CreatableTopic(name, 1, 1)])).topics
    assert answer.error_code == 0


def test_confluent_administers_acls(broker: Broker, operator: IdentifiedClient) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
    binding = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        "orders-",
        confluent.ResourcePatternType.PREFIXED,
        "User:alice",
        "10.0.0.1",
        confluent.AclOperation.READ,
        confluent.AclPermissionType.DENY,
    )
    anything = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "orders-eu",
        confluent.ResourcePatternType.MATCH,
        "User:alice",
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)cluster.authorization"):
        admin.create_acls([binding])[binding].result(TIMEOUT_S)
    # librdkafka reads the error of DescribeAcls and forgets it: nothing is found.
    assert admin.describe_acls(anything).result(TIMEOUT_S) == []
    assert not any(operator.create(ADMINISTER))
    admin.create_acls([binding])[binding].result(TIMEOUT_S)
    admin.create_acls([binding])[binding].result(TIMEOUT_S)  # it exists: a success
    assert admin.describe_acls(anything).result(TIMEOUT_S) == [binding]
    assert admin.delete_acls([anything])[anything].result(TIMEOUT_S) == [binding]
    assert admin.describe_acls(anything).result(TIMEOUT_S) == []


def test_kafka_python_administers_acls(broker: Broker, operator: IdentifiedClient) -> None:
    assert not any(operator.create(ADMINISTER))
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        pattern = kafka_python.ResourcePattern(
            kafka_python.ResourceType.GROUP, "billing", kafka_python.ACLResourcePatternType.LITERAL
        )
        acl = kafka_python.ACL(
            "User:alice",
            "*",
            kafka_python.ACLOperation.ALL,
            kafka_python.ACLPermissionType.ALLOW,
            pattern,
        )
        created: Any = admin.create_acls([acl])
        assert created["failed"] == []
        wanted = kafka_python.ACLFilter(
            None,
            None,
            kafka_python.ACLOperation.ANY,
            kafka_python.ACLPermissionType.ANY,
            kafka_python.ResourcePatternFilter(
                kafka_python.ResourceType.GROUP, "billing", kafka_python.ACLResourcePatternType.ANY
            ),
        )
        described: Any = admin.describe_acls(wanted)
        acls = described[0] if isinstance(described, tuple) else described
        assert acls == [acl]
        ((_, deleted, error),) = admin.delete_acls([wanted])
        assert error is kafka.errors.NoError
        assert deleted == [acl]
    finally:
        admin.close()


def test_confluent_is_denied_then_allowed(broker: Broker, operator: IdentifiedClient) -> None:
    create_topic(operator, "confluent")
    outcomes: list[Any] = []

    def produce() -> Any:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20_000}
        )
        producer.produce("confluent", b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        return outcomes.pop()

    assert produce().code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    operator.create([allow(Operation.WRITE, topic, "confluent")])
    assert produce() is None

    def consume() -> Any:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "confluent",
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe(["confluent"])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            error = message.error()
            return message.value() if error is None else error.code()
        finally:
            consumer.close()

    assert consume() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    operator.create([allow(Operation.READ, group, "confluent")])
    assert consume() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    operator.create([allow(Operation.READ, topic, "confluent")])
    assert consume() == b"v"


def test_kafka_python_is_denied_then_allowed(broker: Broker, operator: IdentifiedClient) -> None:
    create_topic(operator, "kafka-python")

    def send() -> int:
        # A new one each time: that it may not produce at all (InitProducerId) is final for it.
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
        try:
            offset: int = producer.send("kafka-python", b"v").get(TIMEOUT_S).offset
            return offset
        finally:
            producer.close()

    with pytest.raises(kafka.errors.KafkaError, match="AuthorizationFailed"):
        send()
    operator.create([allow(Operation.WRITE, ResourceType.TOPIC, "kafka-python")])
    assert send() == 0


async def test_aiokafka_is_denied_then_allowed(broker: Broker, operator: IdentifiedClient) -> None:
    create_topic(operator, "aiokafka")
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("aiokafka", b"v")
        operator.create([allow(Operation.WRITE, topic, "aiokafka")])
        await producer.send_and_wait("aiokafka", b"v")
    finally:
        await producer.stop()
    operator.create([allow(Operation.READ, topic, "aiokafka")])
    consumer = aiokafka.AIOKafkaConsumer(
        "aiokafka",
        bootstrap_servers=broker.bootstrap,
        group_id="aiokafka",
        auto_offset_reset="earliest",
    )
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.start()
    await consumer.stop()
    operator.create([allow(Operation.READ, group, "aiokafka")])
    consumer = aiokafka.AIOKafkaConsumer(
        "aiokafka",
        bootstrap_servers=broker.bootstrap,
        group_id="aiokafka",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        assert (await consumer.getone()).value == b"v"
    finally:
        await consumer.stop()
