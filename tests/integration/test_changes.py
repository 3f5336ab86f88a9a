"""A client reads its own changes, whichever worker it asks: no waiting, no asking twice."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import time
from collections.abc import Iterator

import pytest

from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import TOPIC_RESOURCE, alter_brokers, alter_topic, create_topic
from tests.support.raw.client import RawClient

WORKERS = 3
TIMES = 50
UNKNOWN_TOPIC = 3
BOUND_S = 1.0  # what a worker that does not answer costs


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=WORKERS) as started:
        yield started


def listed(client: RawClient) -> set[str | None]:
    """The topics that a worker knows of."""
    return {found.name for found in client.call(MetadataRequest(topics=None)).topics}


def partitions(client: RawClient, topic: str, *, create: bool = False) -> int | None:
    """None if the worker does not know the topic, among all and by name."""
    everything = client.call(MetadataRequest(topics=None)).topics
    listed = [len(found.partitions) for found in everything if found.name == topic]
    asked = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
    (found,) = client.call(asked).topics
    if found.error_code == UNKNOWN_TOPIC:
        assert not listed
        return None
    assert found.error_code == 0
    if not create:
        assert listed == [len(found.partitions)]
    return len(found.partitions)


def add_partitions(client: RawClient, topic: str, total: int) -> None:
    wanted = CreatePartitionsTopic(topic, total, assignments=None)
    (answer,) = client.call(CreatePartitionsRequest(topics=[wanted])).results
    assert answer.error_code == 0


def delete(client: RawClient, *topics: str) -> None:
    wanted = [DeleteTopicState(name=topic) for topic in topics]
    answers = client.call(DeleteTopicsRequest(topics=wanted)).responses
    assert [answer.error_code for answer in answers] == [0] * len(topics)


def retention(client: RawClient, topic: str) -> str | None:
    wanted = DescribeConfigsResource(TOPIC_RESOURCE, topic, ["retention.ms"])
    (answer,) = client.call(DescribeConfigsRequest(resources=[wanted])).results
    assert answer.error_code == 0
    value: str | None = answer.configs[0].value
    return value


def late(broker: Broker, worker: int) -> int:
    """How often the log says that this worker had not applied a change in time."""
    said = re.findall(r"a change was not applied within \S+ s by worker ([\d, ]+):", broker.log())
    return sum(str(worker) in one.split(", ") for one in said)


def test_every_worker_serves_a_change_when_it_is_answered(clients: list[RawClient]) -> None:
    for number in range(TIMES):
        topic = f"changing-{number}"
        changing = clients[number % WORKERS]
        others = [client for client in clients if client is not changing]
        create_topic(changing, topic)
        assert [partitions(client, topic) for client in others] == [1, 1]
        add_partitions(changing, topic, 3)
        assert [partitions(client, topic) for client in others] == [3, 3]
        alter_topic(changing, topic, {"retention.ms": 1_000_000 + number})
        assert {retention(client, topic) for client in others} == {str(1_000_000 + number)}
        delete(changing, topic)
        assert [partitions(client, topic) for client in others] == [None, None]


def test_a_topic_created_by_metadata_is_known_to_all(clients: list[RawClient]) -> None:
    for number in range(TIMES):
        topic = f"asked-for-{number}"
        changing = clients[number % WORKERS]
        assert partitions(changing, topic, create=True) == 1
        assert [partitions(client, topic) for client in clients] == [1] * WORKERS


def test_broker_configuration_is_in_force_on_all(clients: list[RawClient]) -> None:
    create_topic(clients[0], "by-default")
    for number in range(TIMES):
        alter_brokers(clients[number % WORKERS], {"log.retention.ms": 2_000_000 + number})
        assert {retention(client, "by-default") for client in clients} == {str(2_000_000 + number)}


def test_a_worker_that_is_stopped_delays_a_change_once(
    broker: Broker, clients: list[RawClient]
) -> None:
    said = late(broker, 2)
    broker.kill("worker", 2, signal.SIGSTOP)
    try:
        began = time.monotonic()
        create_topic(clients[0], "without-one")
        assert time.monotonic() - began > BOUND_S * 0.9
        # On a busy machine another worker may be late too; then it need not know of it yet.
        assert partitions(clients[1], "without-one") == 1 or late(broker, 1)
        assert late(broker, 2) == said + 1
        add_partitions(clients[0], "without-one", 2)
        assert partitions(clients[1], "without-one") == 2 or late(broker, 1)
        delete(clients[0], "without-one")
        assert partitions(clients[1], "without-one") is None or late(broker, 1)
        assert late(broker, 2) == said + 1  # once, not each time
    finally:
        broker.kill("worker", 2, signal.SIGCONT)
    # It catches up, and is waited for again.
    create_topic(clients[0], "all-again")
    # Among all: a topic that is asked for by its name is looked up in the store.
    wait_until(lambda: "all-again" in listed(clients[2]), 30, "it catches up")
    totals = itertools.count(2)

    def at_once() -> bool:
        total = next(totals)
        add_partitions(clients[0], "all-again", total)
        return partitions(clients[2], "all-again") == total

    # It knows of the first change before the other worker knows that it does.
    wait_until(lambda: at_once() and at_once(), 30, "it is waited for again")
    assert all(at_once() for _ in range(10))


def test_a_worker_that_was_killed_serves_every_change_when_it_is_back(
    broker: Broker, clients: list[RawClient]
) -> None:
    """Its first answer has them already; its listening socket is open while it restarts."""
    create_topic(clients[0], "after-a-kill")
    port = broker.processes("worker")[1]["port"]
    totals = itertools.count(2)
    for _ in range(3):
        killed = broker.kill("worker", 1)
        changed_since = 0
        while changed_since < 5 or not is_back(broker, killed):
            total = next(totals)
            add_partitions(clients[0], "after-a-kill", total)
            changed_since += 1
            # The one that is killed may still have accepted the connection.
            with contextlib.suppress(ConnectionError), RawClient(port) as back:
                assert partitions(back, "after-a-kill") == total


def is_back(broker: Broker, killed: int) -> bool:
    worker = broker.processes("worker")[1]
    return bool(worker["state"] == "running" and worker["pid"] != killed)
