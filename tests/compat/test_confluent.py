"""confluent-kafka (librdkafka) works unmodified."""

from __future__ import annotations

import pytest

from tests.support.clients.base import EARLIEST, LATEST, MAX_TIMESTAMP, Place, Record, Refused
from tests.support.clients.confluent import Confluent, ConfluentAdmin
from tests.support.compat.configs import UNKNOWN_TOPIC, ConfigsTests, IncrementalConfigsTests
from tests.support.compat.consuming import ConsumingTests
from tests.support.compat.producing import MESSAGE_TOO_LARGE, ProducingTests
from tests.support.compat.session import Session, send_all, values
from tests.support.compat.topics import TopicsTests


@pytest.fixture(scope="module")
def client() -> Confluent:
    return Confluent()


class TestProducing(ProducingTests):
    def test_an_idempotent_producer_goes_on_after_a_refusal(self, kafka: Session) -> None:
        topic = kafka.topic(configs={"max.message.bytes": "10000"})
        producer = kafka.producer(idempotent=True)

        for number in range(3):
            with pytest.raises(Refused) as refusal:
                send_all(producer, topic, [Record(value=b"x" * 20_000, partition=0)])
            assert refusal.value.code == MESSAGE_TOO_LARGE
            send_all(producer, topic, [Record(value=b"%d" % number, partition=0)])

        assert values(kafka.read(topic, 3)) == [b"0", b"1", b"2"]


class TestConsuming(ConsumingTests):
    pass


class TestTopics(TopicsTests):
    def test_a_topic_created_again_has_another_id(self, kafka: Session) -> None:
        admin = _admin(kafka)
        topic = kafka.topic()
        before = admin.topic_id(topic)

        kafka.admin.delete_topics([topic])
        kafka.produce(topic, [Record(value=b"creates it")])

        assert admin.topic_id(topic) != before

    def test_list_offsets(self, kafka: Session) -> None:
        topic = kafka.topic()
        times = [1_700_000_000_000, 1_700_000_005_000, 1_700_000_002_000]
        kafka.produce(topic, [Record(value=b"v", partition=0, timestamp=at) for at in times])
        admin, place = _admin(kafka), Place(topic)

        assert admin.list_offset(place, EARLIEST)[0] == 0
        assert admin.list_offset(place, LATEST)[0] == 3
        assert admin.list_offset(place, MAX_TIMESTAMP) == (1, times[1])
        assert admin.list_offset(place, times[0] + 1) == (1, times[1])

    def test_there_are_no_access_rules(self, kafka: Session) -> None:
        # The broker says SECURITY_DISABLED, which this client takes for an empty list.
        assert _admin(kafka).describe_acls() == []


class TestConfigs(ConfigsTests, IncrementalConfigsTests):
    def test_a_topic_that_is_not_there_has_none(self, kafka: Session) -> None:
        with pytest.raises(Refused) as refusal:
            kafka.admin.topic_configs(kafka.new_name())

        assert refusal.value.code == UNKNOWN_TOPIC


def _admin(kafka: Session) -> ConfluentAdmin:
    assert isinstance(kafka.admin, ConfluentAdmin)
    return kafka.admin
