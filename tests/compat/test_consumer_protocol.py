"""Groups of the consumer protocol (KIP-848) of confluent-kafka consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from moldau.broker.errors import ErrorCode
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.clients.base import Record
from tests.support.clients.confluent import Confluent
from tests.support.clients.members import ConfluentConsumerMember, ConfluentMember, Member
from tests.support.compat.grouping import CooperativeTests, Crew, Flow, GroupTests

GROUP = ResourceType.GROUP
DYNAMIC_GROUP_CONFIG = 8
# Clients take the interval from the broker: short ones make short tests.
QUICK = {
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": 3_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.assignment.interval.ms": 200,
}


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    with running_broker(broker=QUICK) as broker:
        yield broker


@pytest.fixture(scope="module")
def client() -> Confluent:
    return Confluent()


@pytest.fixture
def member_class() -> type[Member]:
    return ConfluentConsumerMember


@pytest.fixture(params=ConfluentConsumerMember.strategies)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestGroups(GroupTests, CooperativeTests):
    """What every group must be able to do."""

    def test_8_29_8_32_a_rolling_migration_and_back_under_load(self, crew: Crew) -> None:
        """Nothing is lost, and nothing that was committed is read again."""
        partitions = 6
        topic = crew.kafka.topic(partitions)
        flow = Flow(crew.kafka, topic, partitions)
        old, new = ConfluentMember, ConfluentConsumerMember
        steps = ((old, "cooperative-sticky"), (new, "uniform"), (old, "cooperative-sticky"))
        members: list[Member] = []
        try:
            for kind, strategy in steps:
                crew.member_class = kind
                for _ in range(2):
                    members.append(crew.join([topic], strategy=strategy))
                    crew.wait_shared(topic, partitions, *members)
                    if len(members) > 2:
                        members.pop(0).stop()
                        crew.wait_shared(topic, partitions, *members)
        finally:
            sent = flow.stop()
        crew.wait(lambda: crew.count() >= sent, "everything was read")
        times = Counter((got.place, got.offset) for one in crew.members for got in one.got)
        assert len(times) == sent
        assert set(times.values()) == {1}
        assert sum(crew.committed(topic, partitions).values()) == sent

    def test_8_33_what_administrators_see(self, crew: Crew) -> None:
        topic = crew.kafka.topic(2)
        member = crew.join([topic])
        crew.wait(lambda: len(member.assigned) == 2, "it has joined")
        crew.kafka.produce(topic, [Record(value=b"v", partition=0)])
        crew.wait(lambda: member.got, "its record")
        admin = AdminClient({"bootstrap.servers": crew.kafka.broker.bootstrap})
        (described,) = (
            one.result() for one in admin.describe_consumer_groups([crew.group]).values()
        )
        assert described.type is ConsumerGroupType.CONSUMER
        assert described.state is ConsumerGroupState.STABLE
        (shown,) = described.members
        assert {one.partition for one in shown.assignment.topic_partitions} == {0, 1}
        listed = {one.group_id: one for one in admin.list_consumer_groups().result().valid}
        assert listed[crew.group].type is ConsumerGroupType.CONSUMER
        (refused,) = (
            one.exception() for one in admin.delete_consumer_groups([crew.group]).values()
        )
        assert refused is not None
        assert refused.args[0].code() == ErrorCode.NON_EMPTY_GROUP
        member.stop()

        def is_deleted() -> bool:
            answers = admin.delete_consumer_groups([crew.group]).values()
            return all(one.exception() is None for one in answers)

        wait_until(is_deleted, 30, "the group is deleted")

    def test_8_34_a_groups_own_configuration(self, crew: Crew) -> None:
        admin = AdminClient({"bootstrap.servers": crew.kafka.broker.bootstrap})

        def described() -> dict[str, Any]:
            (asked,) = admin.describe_configs([ConfigResource(GROUP, crew.group)]).values()
            return dict(asked.result())

        def altered(name: str, value: str) -> BaseException | None:
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(GROUP, crew.group, incremental_configs=[entry])
            (asked,) = admin.incremental_alter_configs([resource]).values()
            return asked.exception()

        assert described()["consumer.heartbeat.interval.ms"].value == "300"
        assert altered("consumer.heartbeat.interval.ms", "700") is None
        changed = described()["consumer.heartbeat.interval.ms"]
        assert (changed.value, changed.source) == ("700", DYNAMIC_GROUP_CONFIG)
        for name, value in (("consumer.session.timeout.ms", "1"), ("unknown", "1")):
            refused = altered(name, value)
            assert isinstance(refused, KafkaException)
            assert refused.args[0].code() == ErrorCode.INVALID_CONFIG
