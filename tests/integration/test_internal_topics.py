"""Topics of the broker's own: clients can neither create nor write them."""

from __future__ import annotations

import os
import time

import pytest
from confluent_kafka import KafkaError, Producer

from moldau.broker.errors import ErrorCode
from moldau.broker.topics.topics import GROUP_EVENTS, INTERNAL, NEVER_TOPICS
from moldau.broker.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.broker.wire.messages.fetch import FetchRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.group import RawMember


@pytest.mark.parametrize("name", sorted(INTERNAL))
def test_it_cannot_be_created(moldau: Broker, name: str) -> None:
    with RawClient(moldau.port) as client:
        request = CreateTopicsRequest([CreatableTopic(name, 1, 1)], 10_000)
        assert client.call(request).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", sorted(INTERNAL - {GROUP_EVENTS}))
def test_metadata_does_not_create_it(moldau: Broker, name: str) -> None:
    """Producers ask again for as long as a topic is unknown, and give up at once when it cannot
    be: what Kafka keeps in topics and Moldau does not will never exist."""
    with RawClient(moldau.port) as client:
        for creates in (True, False):
            request = MetadataRequest([MetadataRequestTopic(name=name)], creates)
            (answer,) = client.call(request).topics
            assert answer.is_internal
            assert answer.error_code == (
                ErrorCode.INVALID_TOPIC_EXCEPTION
                if creates and name in NEVER_TOPICS
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )


@pytest.mark.parametrize("name", sorted(NEVER_TOPICS))
def test_what_is_sent_to_it_is_refused_as_in_kafka(moldau: Broker, name: str) -> None:
    with RawClient(moldau.port) as client:
        answer = client.produce(name, make_batch([(b"k", b"v", 1)]))
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert name in (answer.error_message or "")


@pytest.mark.parametrize("name", sorted(NEVER_TOPICS))
def test_a_producer_of_it_fails_at_once(moldau: Broker, name: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{moldau.port}"})
    outcomes: list[KafkaError | None] = []
    producer.produce(name, b"x", on_delivery=lambda error, _: outcomes.append(error))

    def is_answered() -> bool:
        producer.poll(0.1)
        return bool(outcomes)

    wait_until(is_answered, 30, "the record is refused")
    (error,) = outcomes
    assert error is not None
    assert error.code() == KafkaError.TOPIC_EXCEPTION


def test_forged_group_events_are_refused(moldau: Broker) -> None:
    with RawMember(moldau.port, f"forged-{os.getpid()}") as client:
        client.enter()  # which is an event

        def exists() -> bool:
            request = MetadataRequest([MetadataRequestTopic(name=GROUP_EVENTS)], False)
            return bool(client.call(request).topics[0].error_code == 0)

        wait_until(exists, 30, "the topic of group events exists")
        for _ in range(2):  # a repeated request takes the short way
            answer = client.produce(GROUP_EVENTS, make_batch([(b"k", b"forged", 1)]))
            assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_fetch_without_partitions_does_not_wait(moldau: Broker) -> None:
    """The Java client sends one when it is closed."""
    wait_ms = 60_000
    with RawClient(moldau.port) as client:
        begun = time.monotonic()
        assert not client.call(FetchRequest(max_wait_ms=wait_ms, min_bytes=1), 12).responses
        assert time.monotonic() - begun < wait_ms / 1000
