"""aiokafka works unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients.aiokafka import Aiokafka
from tests.support.clients.base import Refused
from tests.support.compat.configs import ConfigsTests
from tests.support.compat.consuming import ConsumingTests
from tests.support.compat.producing import ProducingTests
from tests.support.compat.session import Session
from tests.support.compat.topics import UNKNOWN_TOPIC, TopicsTests


@pytest.fixture(scope="module")
def client() -> Iterator[Aiokafka]:
    client = Aiokafka()
    yield client
    client.close()


class TestProducing(ProducingTests):
    pass


class TestConsuming(ConsumingTests):
    pass


class TestTopics(TopicsTests):
    def test_asking_for_a_topic_creates_it(self, kafka: Session) -> None:
        # This client's Metadata requests allow it.
        topic = kafka.new_name()

        assert list(kafka.admin.leaders(topic)) == [0]
        kafka.wait_for_topics(topic)


class TestConfigs(ConfigsTests):
    def test_a_topic_that_is_not_there_has_none(self, kafka: Session) -> None:
        with pytest.raises(Refused) as refusal:
            kafka.admin.topic_configs(kafka.new_name())

        assert refusal.value.code == UNKNOWN_TOPIC
