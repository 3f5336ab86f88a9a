"""The first answer after a start with a lost tail is right, whoever asks, and whatever is asked.

No log is loaded then. Each topic here is asked about in one way first, so that no other request
has loaded its logs before.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.broker.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, remove_dir, short_temp_dir
from tests.support.raw.calls import create_topic, worker_clients
from tests.support.raw.client import RawClient, make_batch
from tests.support.stores.lossy import newest_file

NOTED_S = 3.0  # the supervisor notes how long the file of the store is every second
KEPT, LOST, PARTITIONS = 3, 2, 2
TOPICS = ("named", "listed", "paged", "described", "grouped")


def produce(port: int, count: int) -> None:
    with RawClient(port) as client:
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                for _ in range(count):
                    batch = make_batch([(None, b"value", time.time_ns() // 1_000_000)])
                    assert client.produce(topic, batch, partition=partition).error_code == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Just started, after the store's file has lost its end."""
    # Without its console, which looks at all logs on its own account.
    directory = short_temp_dir()
    started = [Broker.start(directory)]
    try:
        (before,) = started
        with RawClient(before.port) as client:
            for topic in TOPICS:
                create_topic(client, topic, partitions=PARTITIONS)
        produce(before.port, KEPT)
        consumer = Consumer({"bootstrap.servers": before.bootstrap, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("grouped", 0, 1)], asynchronous=False)
        consumer.close()
        file = newest_file(before.data_dir / "store")
        size = file.stat().st_size
        produce(before.port, LOST)
        time.sleep(NOTED_S)
        kill(before)
        os.truncate(file, size)
        started.append(Broker.start(directory, port=before.port))
        yield started[-1]
        assert started[-1].stop() == 0
        assert "Traceback" not in started[-1].log()
    finally:
        started[-1].stop()
        remove_dir(directory)


def kill(broker: Broker) -> None:
    broker.remember_members()
    for process in broker.status()["processes"]:
        if process["role"] != "supervisor" and process["pid"] is not None:
            os.kill(process["pid"], signal.SIGSTOP)  # none notices that others die
    broker.kill_everything()
    broker.stop()


def test_metadata_of_one_topic(broker: Broker) -> None:
    with worker_clients(broker) as clients:
        for client in clients:
            asked = [MetadataRequestTopic(name="named")]
            (topic,) = client.call(MetadataRequest(asked), 12).topics
            assert topic.error_code == 0
            found = [(one.error_code, one.leader_epoch) for one in topic.partitions]
            assert found == [(0, 1)] * PARTITIONS


def test_describe_topic_partitions(broker: Broker) -> None:
    with worker_clients(broker) as clients:
        for client in clients:
            request = DescribeTopicPartitionsRequest([TopicRequest("paged")])
            (topic,) = client.call(request, 0).topics
            found = [(one.error_code, one.leader_epoch) for one in topic.partitions]
            assert found == [(0, 1)] * PARTITIONS


def test_metadata_of_all_topics(broker: Broker) -> None:
    with worker_clients(broker) as clients:
        for client in clients:
            found = {topic.name: topic for topic in client.call(MetadataRequest(None), 12).topics}
            assert {one.leader_epoch for one in found["listed"].partitions} == {1}


def test_topics_describe(broker: Broker) -> None:
    (described,) = Cli(broker).json("topics", "describe", "described")["topics"]
    assert described["records"] == KEPT * PARTITIONS
    for one in described["partitions"]:
        assert one["leader_epoch"] == 1
        assert one["gaps"] == [{"first_offset": KEPT, "last_offset": one["end_offset"] - 1}]


def test_groups_describe(broker: Broker) -> None:
    (group,) = Cli(broker).json("groups", "describe", "readers")["groups"]
    assert [one["lag"] for one in group["partitions"]] == [KEPT - 1]
