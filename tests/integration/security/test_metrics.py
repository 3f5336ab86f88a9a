"""Metrics of security: logins, denials, certificates, connections, quotas."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.brokers.secured import librdkafka_settings


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    address = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=1, secure="true", http=address) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        operator = OperatorCli(started)
        operator("users", "add", "alice", "--password-stdin", typed="secret\n")
        operator("quotas", "set", "--user", "bob", "--producer-byte-rate", "100")
        yield started


def total(broker: Broker, name: str, **labels: str) -> float:
    """The sum of the samples of a metric that have these labels."""
    match = re.search(r" http=http://([\d.]+):(\d+)$", broker.ready_line)
    assert match is not None
    connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=30)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0] == name and all(each in line for each in wanted)
    )


def test_logins_and_denials_are_counted(broker: Broker) -> None:
    settings = librdkafka_settings(broker, sasl_username="alice", sasl_password="secret")
    admin = AdminClient({**settings})
    admin.list_topics(timeout=30)
    (refused,) = admin.create_topics([NewTopic("hers", 1)]).values()
    with pytest.raises(KafkaException):
        refused.result(30)
    assert total(broker, "moldau_authentications_total", result="success") >= 1
    assert total(broker, "moldau_authorization_denials_total", operation="CREATE") >= 1
    assert total(broker, "moldau_connections_total") >= 1
    with pytest.raises(KafkaException):
        AdminClient({**settings, "sasl.password": "wrong", "log_level": "0"}).list_topics(timeout=5)
    assert total(broker, "moldau_authentications_total", result="failure") >= 1


def test_a_certificate_has_an_end_and_a_failed_handshake_counts(broker: Broker) -> None:
    expiry = "moldau_tls_certificate_expires_at_timestamp_seconds"
    assert total(broker, expiry, role="worker") > time.time()
    with socket.create_connection(("127.0.0.1", broker.port), 30) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1000) is not None
    name = "moldau_connections_refused_total"
    wait_until(lambda: total(broker, name, reason="tls") >= 1, 30, "it is counted")


def test_time_for_which_clients_are_throttled_is_counted(broker: Broker) -> None:
    operator = OperatorCli(broker)
    operator("users", "add", "bob", "--password-stdin", typed="secret\n")
    operator("topics", "create", "his")
    operator("acls", "add", "--user", "bob", "--producer", "--topic", "his")
    bob = {"sasl_username": "bob", "sasl_password": "secret"}
    producer = Producer(librdkafka_settings(broker, **bob))
    producer.produce("his", b"x" * 2000)
    assert producer.flush(60) == 0
    assert total(broker, "moldau_quota_throttle_seconds_total", quota="producer_byte_rate") > 0
