"""ACLs with real clients that have logged in: their own calls, and how they take a denial."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import msgspec
import pytest
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.broker.topics.topics import AUDIT
from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.brokers.running import Broker, wait_until
from tests.support.brokers.sasl_broker import sasl_broker
from tests.support.raw.client import records_in
from tests.support.raw.identified import IdentifiedClient

# Neither declares what it exports.
confluent: Any = importlib.import_module("confluent_kafka.admin")
kafka_python: Any = importlib.import_module("kafka.admin")

ALICE = "User:alice"
TIMEOUT_S = 30


def allow(operation: Operation, resource: ResourceType, name: str) -> Acl:
    literal, allowed = PatternType.LITERAL, Permission.ALLOW
    return Acl(resource, name, literal, ALICE, "*", operation, allowed)


ADMINISTER = [allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings: dict[str, object] = {
        "authorizer.class.name": "standard",
        "group.initial.rebalance.delay.ms": 100,
    }
    with sasl_broker(settings) as started:
        yield started.broker


@pytest.fixture(params=["router", "worker"])
def librdkafka(broker: Broker, request: pytest.FixtureRequest) -> dict[str, Any]:
    """How confluent-kafka connects as alice."""
    return {
        "bootstrap.servers": bootstrap(broker, request.param),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }


@pytest.fixture(params=["router", "worker"])
def python(broker: Broker, request: pytest.FixtureRequest) -> dict[str, Any]:
    """How the clients in Python do."""
    return {
        "bootstrap_servers": bootstrap(broker, request.param),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }


def bootstrap(broker: Broker, where: str) -> str:
    return f"127.0.0.1:{broker.port if where == 'router' else broker.port + 1}"


@pytest.fixture
def operator(broker: Broker) -> Iterator[IdentifiedClient]:
    with IdentifiedClient(broker) as client:
        yield client
        client.delete_of(ALICE)


def create_topic(operator: IdentifiedClient, name: str, settings: dict[str, Any]) -> str:
    """One for each way to the broker."""
    name = f"{name}-{next(iter(settings.values())).rpartition(':')[2]}"
    (answer,) = operator.call(CreateTopicsRequest([CreatableTopic(name, 1, 1)])).topics
    assert answer.error_code == 0
    return name


def test_confluent_administers_acls(librdkafka: dict[str, Any], operator: IdentifiedClient) -> None:
    admin = confluent.AdminClient(librdkafka)
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


def test_kafka_python_administers_acls(python: dict[str, Any], operator: IdentifiedClient) -> None:
    assert not any(operator.create(ADMINISTER))
    admin = kafka.KafkaAdminClient(**python)
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


def test_confluent_is_denied_then_allowed(
    librdkafka: dict[str, Any], operator: IdentifiedClient
) -> None:
    name = create_topic(operator, "confluent", librdkafka)
    outcomes: list[Any] = []

    def produce() -> Any:
        producer = confluent_kafka.Producer({**librdkafka, "message.timeout.ms": 20_000})
        producer.produce(name, b"v", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        return outcomes.pop()

    assert produce().code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    operator.create([allow(Operation.WRITE, topic, name)])
    assert produce() is None

    def consume() -> Any:
        consumer = confluent_kafka.Consumer(
            {
                **librdkafka,
                "group.id": name,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.subscribe([name])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            error = message.error()
            return message.value() if error is None else error.code()
        finally:
            consumer.close()

    assert consume() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    operator.create([allow(Operation.READ, group, name)])
    assert consume() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    operator.create([allow(Operation.READ, topic, name)])
    assert consume() == b"v"


def test_kafka_python_is_denied_then_allowed(
    python: dict[str, Any], operator: IdentifiedClient
) -> None:
    name = create_topic(operator, "kafka-python", python)

    def send() -> int:
        # A new one each time: that it may not produce at all (InitProducerId) is final for it.
        producer = kafka.KafkaProducer(**python)
        try:
            offset: int = producer.send(name, b"v").get(TIMEOUT_S).offset
            return offset
        finally:
            producer.close()

    with pytest.raises(kafka.errors.KafkaError, match="AuthorizationFailed"):
        send()
    operator.create([allow(Operation.WRITE, ResourceType.TOPIC, name)])
    assert send() == 0


async def test_aiokafka_is_denied_then_allowed(
    python: dict[str, Any], operator: IdentifiedClient
) -> None:
    name = create_topic(operator, "aiokafka", python)
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    producer = aiokafka.AIOKafkaProducer(**python)
    await producer.start()
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(name, b"v")
        operator.create([allow(Operation.WRITE, topic, name)])
        await producer.send_and_wait(name, b"v")
    finally:
        await producer.stop()
    operator.create([allow(Operation.READ, topic, name)])
    consumer = aiokafka.AIOKafkaConsumer(
        name,
        **python,
        group_id=name,
        auto_offset_reset="earliest",
    )
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.start()
    await consumer.stop()
    operator.create([allow(Operation.READ, group, name)])
    consumer = aiokafka.AIOKafkaConsumer(
        name,
        **python,
        group_id=name,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        assert (await consumer.getone()).value == b"v"
    finally:
        await consumer.stop()


def test_logins_are_audited(librdkafka: dict[str, Any], operator: IdentifiedClient) -> None:
    def events() -> list[tuple[Any, ...]]:
        partition = FetchPartition(0, partition_max_bytes=1 << 20)
        request = FetchRequest(topics=[FetchTopic(AUDIT, partitions=[partition])])
        (answer,) = operator.call(request, 12).responses[0].partitions
        values = [msgspec.json.decode(record.value or b"") for record in records_in(answer)]
        fields = ("event", "principal", "user", "host", "mechanism")
        return [tuple(value.get(field) for field in fields) for value in values]

    confluent.AdminClient(librdkafka).list_topics(timeout=TIMEOUT_S)
    wrong = confluent.AdminClient({**librdkafka, "sasl.password": "wrong"})
    with pytest.raises(confluent_kafka.KafkaException):
        wrong.list_topics(timeout=3)
    expected = {
        ("login", "User:alice", None, "127.0.0.1", "SCRAM-SHA-512"),
        ("login_failed", None, "alice", "127.0.0.1", "SCRAM-SHA-512"),
    }
    wait_until(lambda: expected <= set(events()), 30, "both logins are in the audit")
