"""What the clients' admin interfaces show and change of groups, and commits without a group."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.brokers.running import Broker
from tests.support.clients.aiokafka import Aiokafka, AiokafkaAdmin
from tests.support.clients.kafka_python import KafkaPythonAdmin
from tests.support.compat.grouping import quick_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.group import RawMember, coordinator_port

# kafka-python's import warns; the adapter above has silenced it.
import kafka  # isort: skip
from kafka.structs import OffsetAndMetadata  # isort: skip
from kafka.structs import TopicPartition as PyPartition  # isort: skip


PATIENCE_S = 30.0
NON_EMPTY, NOT_FOUND = 68, 69


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    yield from quick_broker()


@pytest.fixture
def topic(moldau: Broker, member: RawMember) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(member, name, partitions=2)
    return name


@pytest.fixture
def member(moldau: Broker) -> Iterator[RawMember]:
    group = f"group-{uuid.uuid4().hex[:12]}"
    with RawMember(coordinator_port(moldau, group), group) as member:
        yield member


def subscription(topic: str) -> bytes:
    """ConsumerProtocolSubscription v0: version, topics, user data."""
    name = topic.encode()
    return b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"


def assignment(topic: str) -> bytes:
    """ConsumerProtocolAssignment v0: version, topics with their partitions, user data."""
    name = topic.encode()
    partitions = b"\0\0\0\1\0\0\0\1"
    return b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + partitions + b"\xff\xff\xff\xff"


@pytest.fixture
def stable(member: RawMember, topic: str) -> RawMember:
    """A group of one consumer that reads partition 1 and has committed it."""
    member.protocols = {"range": subscription(topic)}
    member.enter(assignment(topic))
    assert member.commit(topic, 11, partition=1, metadata="note") == 0
    return member


class TestConfluent:
    @pytest.fixture
    def admin(self, moldau: Broker) -> Any:
        return AdminClient({"bootstrap.servers": moldau.bootstrap})

    def test_list_and_describe(self, admin: Any, stable: RawMember, topic: str) -> None:
        listed = admin.list_consumer_groups().result(PATIENCE_S)
        assert listed.errors == []
        states = {item.group_id: item.state for item in listed.valid}
        assert states[stable.group] == ConsumerGroupState.STABLE

        found = admin.describe_consumer_groups([stable.group])[stable.group].result(PATIENCE_S)
        assert found.state == ConsumerGroupState.STABLE
        assert found.partition_assignor == "range"
        assert found.coordinator.port == stable.port
        (item,) = found.members
        assert (item.member_id, item.client_id) == (stable.member_id, "raw")
        (place,) = item.assignment.topic_partitions
        assert (place.topic, place.partition) == (topic, 1)

    def test_offsets_are_listed_altered_and_deleted_with_the_group(
        self, admin: Any, stable: RawMember, topic: str
    ) -> None:
        def listed() -> dict[int, int]:
            # Not the metadata: the client reads past the end of what others have committed.
            wanted = [ConsumerGroupTopicPartitions(stable.group)]
            found = admin.list_consumer_group_offsets(wanted)[stable.group].result(PATIENCE_S)
            return {item.partition: item.offset for item in found.topic_partitions}

        def code(future: Any) -> int:
            try:
                future.result(PATIENCE_S)
            except confluent_kafka.KafkaException as refusal:
                return int(refusal.args[0].code())
            return 0

        assert listed() == {1: 11}
        assert code(admin.delete_consumer_groups([stable.group])[stable.group]) == NON_EMPTY
        stable.leave()
        change = ConsumerGroupTopicPartitions(
            stable.group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 2)]
        )
        altered = admin.alter_consumer_group_offsets([change])[stable.group].result(PATIENCE_S)
        assert [item.error for item in altered.topic_partitions] == [None, None]
        assert listed() == {0: 3, 1: 2}
        assert code(admin.delete_consumer_groups([stable.group])[stable.group]) == 0
        assert code(admin.delete_consumer_groups([stable.group])[stable.group]) == NOT_FOUND
        assert listed() == {}

    def test_a_simple_consumer_commits(self, moldau: Broker, member: RawMember, topic: str) -> None:
        settings = {"bootstrap.servers": moldau.bootstrap, "group.id": member.group}
        consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            place = TopicPartition(topic, 0, 5, metadata="bookmark ž")
            consumer.commit(offsets=[place], asynchronous=False)
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        finally:
            consumer.close()
        # It sends its metadata with a terminating zero, and relies on getting that back.
        assert (found.offset, found.metadata) == (5, "bookmark ž")
        assert member.committed(topic) == 5


class TestKafkaPython:
    @pytest.fixture
    def admin(self, moldau: Broker) -> Iterator[Any]:
        admin = KafkaPythonAdmin(moldau.bootstrap)
        yield admin.client
        admin.close()

    def test_list_and_describe(self, admin: Any, stable: RawMember, topic: str) -> None:
        listed = {item["group_id"]: item for item in admin.list_groups()}
        assert listed[stable.group]["protocol_type"] == "consumer"
        assert stable.group in {
            item["group_id"] for item in admin.list_groups(states_filter=["Stable"])
        }
        assert stable.group not in {
            item["group_id"] for item in admin.list_groups(states_filter=["Empty"])
        }

        found = admin.describe_groups([stable.group])[stable.group]
        assert (found["group_state"], found["protocol_data"]) == ("Stable", "range")
        (item,) = found["members"]
        assert item["member_id"] == stable.member_id
        assert topic in str(item["member_assignment"])

    def test_offsets(self, admin: Any, stable: RawMember, topic: str) -> None:
        first, second = PyPartition(topic, 0), PyPartition(topic, 1)

        def listed() -> dict[Any, int]:
            found = admin.list_group_offsets({stable.group: None})[stable.group]
            return {place: item.offset for place, item in found.items()}

        assert listed() == {second: 11}
        refused = admin.delete_group_offsets(stable.group, [second])
        assert refused[second].errno == 86  # the group reads it
        stable.leave()
        altered = admin.alter_group_offsets(
            stable.group,
            {first: OffsetAndMetadata(7, "", -1), second: OffsetAndMetadata(8, "", -1)},
        )
        assert {error.errno for error in altered.values()} == {0}
        assert listed() == {first: 7, second: 8}
        gone = admin.delete_group_offsets(stable.group, [second])
        assert gone[second].errno == 0
        assert listed() == {first: 7}

    def test_delete(self, admin: Any, stable: RawMember) -> None:
        def delete() -> str:
            return str(admin.delete_groups([stable.group])[stable.group])

        assert "NonEmptyGroup" in delete()
        stable.leave()
        assert delete() == "OK"
        assert "GroupIdNotFound" in delete()

    def test_a_simple_consumer_commits(self, moldau: Broker, member: RawMember, topic: str) -> None:
        place = PyPartition(topic, 0)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=moldau.bootstrap, group_id=member.group, enable_auto_commit=False
        )
        try:
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(5, "bookmark ž", -1)})
            found = consumer.committed(place, metadata=True)
        finally:
            consumer.close()
        assert (found.offset, found.metadata) == (5, "bookmark ž")
        assert member.committed(topic) == 5


class TestAiokafka:
    @pytest.fixture
    def client(self) -> Iterator[Aiokafka]:
        client = Aiokafka()
        yield client
        client.close()

    def test_list_describe_and_offsets(
        self, moldau: Broker, client: Aiokafka, stable: RawMember, topic: str
    ) -> None:
        face: AiokafkaAdmin = client.admin(moldau.bootstrap)
        try:
            ask, admin = face._loop.run, face._admin
            assert (stable.group, "consumer") in ask(admin.list_consumer_groups())
            (answer,) = ask(admin.describe_consumer_groups([stable.group]))
            (found,) = answer.groups
            assert (found[0], found[1], found[2]) == (0, stable.group, "Stable")
            offsets = ask(admin.list_consumer_group_offsets(stable.group))
        finally:
            face.close()
        (item,) = offsets.values()
        assert offsets.keys() == {AioPartition(topic, 1)}
        assert (item.offset, item.metadata) == (11, "note")
