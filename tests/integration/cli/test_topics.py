"""`moldau topics` against a running broker, with confluent-kafka as the other side."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until

_names = (f"cli-topics-{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def admin(moldau: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": moldau.bootstrap})


@pytest.fixture(scope="module")
def producer(moldau: Broker) -> Iterator[Producer]:
    made = Producer({"bootstrap.servers": moldau.bootstrap})
    yield made
    assert made.flush(10) == 0


@pytest.fixture
def topic() -> str:
    return next(_names)


def partitions_seen(admin: AdminClient, topic: str) -> dict[int, Any]:
    """Partitions by number; empty when there is no such topic."""
    known = admin.list_topics(timeout=10).topics
    return dict(known[topic].partitions) if topic in known else {}


def config_seen(admin: AdminClient, topic: str, key: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    value: str = admin.describe_configs([resource])[resource].result(10)[key].value
    return value


def test_what_is_created_is_there_for_clients_and_in_the_list(
    cli: Cli, admin: AdminClient, topic: str
) -> None:
    long = topic + "-" + "x" * 150
    created = cli.json(
        "topics", "create", topic, long, "--partitions", "3", "--config", "retention.ms=77000"
    )
    assert [(one["name"], one["partitions"]) for one in created["topics"]] == [
        (topic, 3),
        (long, 3),
    ]
    wait_until(lambda: len(partitions_seen(admin, topic)) == 3, 30, "the client sees it")
    assert config_seen(admin, topic, "retention.ms") == "77000"

    wait_until(lambda: long in cli("topics", "list").stdout, 30, "listed, and not cut short")
    listed = {one["name"]: one for one in cli.json("topics", "list")["topics"]}
    assert listed[topic]["partitions"] == 3
    assert listed[topic]["id"] == created["topics"][0]["id"]


def test_describe_shows_offsets_sizes_leaders_and_what_is_not_default(
    cli: Cli, admin: AdminClient, producer: Producer, topic: str
) -> None:
    cli.json("topics", "create", topic, "--partitions", "2", "--config", "max.message.bytes=5000")
    for number in range(30):
        producer.produce(topic, b"v" * 100, partition=0 if number < 20 else 1)
    assert producer.flush(10) == 0
    admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(10)

    (described,) = cli.json("topics", "describe", topic)["topics"]
    shown = [
        (one["partition"], one["start_offset"], one["end_offset"], one["records"])
        for one in described["partitions"]
    ]
    assert shown == [(0, 5, 20, 15), (1, 0, 10, 10)]
    assert described["records"] == 25
    sizes = [one["size_bytes"] for one in described["partitions"]]
    assert sizes[1] > 10 * 100
    assert described["size_bytes"] == sum(sizes)
    leaders = {one["partition"]: one["leader"] for one in described["partitions"]}
    seen = partitions_seen(admin, topic)
    assert leaders == {number: partition.leader for number, partition in seen.items()}
    assert len(set(leaders.values())) == 2, "leaders are on both workers, so both were asked"
    assert described["configs"] == [
        {"name": "max.message.bytes", "value": "5000", "source": "topic"}
    ]

    text = cli("topics", "describe", topic, topic + "-not")
    assert text.returncode == 1
    rows = [line.split() for line in text.stdout.splitlines()]
    address = described["partitions"][0]["leader_address"]
    assert ["0", str(leaders[0]), address, "5", "20", "15"] in [row[:6] for row in rows]
    assert ["max.message.bytes", "5000", "topic"] in rows
    assert f"topic {topic}-not" in text.stderr
    assert "moldau topics list" in text.stderr
    assert not partitions_seen(admin, topic + "-not"), "looking must not create it"


def test_a_refused_creation_names_cause_and_remedy(
    cli: Cli, admin: AdminClient, topic: str
) -> None:
    dry = cli.json("topics", "create", topic, "--partitions", "4", "--dry-run")["topics"]
    assert [(one["partitions"], one["created"]) for one in dry] == [(4, False)]
    assert not partitions_seen(admin, topic)

    cli.json("topics", "create", topic)
    exists = cli.refused("topics", "create", topic)
    assert topic in exists
    assert "already exists (TOPIC_ALREADY_EXISTS)" in exists  # Kafka's words: scripts look for them
    assert "--if-not-exists" in exists
    again = cli.json("topics", "create", topic, "--if-not-exists")["topics"]
    assert [one["created"] for one in again] == [False]

    other = topic + "-other"
    refused = cli.refused("topics", "create", other, "--config", "retention.ms=soon")
    assert "retention.ms" in refused
    assert "INVALID_CONFIG" in refused
    assert "did you mean" not in refused
    refused = cli.refused("topics", "create", other, "--config", "retention_ms=5000")
    assert "did you mean retention.ms?" in refused
    refused = cli.refused("topics", "create", other, "--partitions", "20000")
    assert "20000 partitions: a topic can have 1 to 10000" in refused
    assert "--partitions" in refused
    assert "more" not in refused
    assert not partitions_seen(admin, other)


def test_alter_changes_all_or_nothing(cli: Cli, admin: AdminClient, topic: str) -> None:
    cli.json("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=77000")
    both = ("topics", "alter", topic, "--partitions", "4", "--config", "cleanup.policy=compact")
    changes = cli.json(*both, "--delete-config", "retention.ms")["changes"]
    assert {one["name"]: (one["before"], one["after"]) for one in changes} == {
        "partitions": (2, 4),
        "cleanup.policy": ("delete", "compact"),
        "retention.ms": ("77000", "604800000"),
    }
    wait_until(lambda: len(partitions_seen(admin, topic)) == 4, 30, "the client sees them")
    assert config_seen(admin, topic, "cleanup.policy") == "compact"
    assert config_seen(admin, topic, "retention.ms") == "604800000"

    fewer = cli.refused(
        "topics", "alter", topic, "--partitions", "3", "--config", "retention.ms=5000"
    )
    assert "INVALID_PARTITIONS" in fewer
    assert "currently has 4 partition(s); 3 would not be an increase" in fewer
    many = cli.refused("topics", "alter", topic, "--partitions", "20000")
    assert "a topic can have 1 to 10000" in many
    assert "more" not in many
    unknown = cli.refused("topics", "alter", topic, "--delete-config", "cleanup-policy")
    assert "no topic configuration cleanup-policy; did you mean cleanup.policy?" in unknown
    assert config_seen(admin, topic, "retention.ms") == "604800000", "the good half, undone"
    cli.refused("topics", "alter", topic, "--partitions", "5", "--config", "cleanup.policy=melt")
    assert len(partitions_seen(admin, topic)) == 4

    assert cli.json("topics", "alter", topic, "--partitions", "4")["changes"] == []
    assert cli("topics", "alter", topic).returncode == 2


def test_delete_wants_to_be_sure(cli: Cli, admin: AdminClient, topic: str) -> None:
    other = topic + "-other"
    cli.json("topics", "create", topic, other)
    assert "--yes" in cli.refused("topics", "delete", topic)
    assert "not confirmed" in cli.refused("topics", "delete", topic, typed="n\n")
    wait_until(lambda: bool(partitions_seen(admin, topic)), 30, "it is still there")

    done = cli("topics", "delete", topic, typed="y\n")
    assert (done.returncode, done.stdout) == (0, f"{topic} deleted\n")
    wait_until(lambda: not partitions_seen(admin, topic), 30, "it is gone for clients")
    assert cli.json("topics", "delete", other, "--yes") == {"deleted": [other]}
    assert topic in cli.refused("topics", "delete", topic, "--yes")


def test_another_servers_port_is_not_taken_for_a_closed_one(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        other = threading.Thread(target=answer)
        other.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        message = cli.refused("topics", "list", "--bootstrap", address)
        other.join()
    assert f"{address} does not answer ApiVersions as expected" in message
    assert "is a Moldau broker" in message


def test_no_broker_there_is_one_clear_line(cli: Cli) -> None:
    message = cli.refused("topics", "list", "--bootstrap", "127.0.0.1:1")
    assert "127.0.0.1:1" in message
    assert "moldau serve" in message
    assert len(message.splitlines()) == 1
    wrong = cli("topics", "list", "--bootstrap", "nonsense")
    assert wrong.returncode == 2
    assert "HOST:PORT" in wrong.stderr
