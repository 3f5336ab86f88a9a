"""More connections than file descriptors: the surplus is refused, and all others are served."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.ops.client.connection import Connection
from moldau.ops.client.security import Security, Tls
from tests.support.brokers.certificates import Certificates
from tests.support.brokers.running import MOLDAU, Broker, running_broker, wait_until
from tests.support.raw.quotas import Anyone

DESCRIPTORS = 300
CLIENTS = 900
BROKER_RESOURCE = 4


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Broker]:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "limited", *MOLDAU]
    keys = {"ssl.keystore.location": certificates.server}
    with running_broker(
        workers=1, command=limited, listeners=["PLAINTEXT", "SSL"], broker=keys
    ) as started:
        yield started


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("role", ["worker", "router"])
def test_more_connections_than_descriptors(
    broker: Broker, certificates: Certificates, role: str, listener: str
) -> None:
    security = Security(Tls(ca_file=str(certificates.ca))) if listener == "SSL" else Security()
    port = int(broker.bootstraps[listener].rpartition(":")[2]) + (role == "worker")
    address = ("127.0.0.1", port)
    pids = broker.pids("worker") + broker.pids("router")
    with Connection(address, security=security, timeout=60) as established:
        assert established.call(MetadataRequest(topics=[])).brokers
        with contextlib.ExitStack() as opened:
            crowd = []
            for number in range(CLIENTS):
                crowd.append(opened.enter_context(socket.create_connection(address, 60)))
                if number % 100 == 0:
                    assert established.call(MetadataRequest(topics=[])).brokers
            wait_until(lambda: sum(map(is_open, crowd)) < DESCRIPTORS, 60, "the surplus is closed")
            for _ in range(5):
                with Anyone(broker, is_operator=True) as operator:  # as pings do
                    assert operator.call(ApiVersionsRequest(), 0).error_code == 0
            assert established.call(MetadataRequest(topics=[])).brokers

        def is_served() -> bool:
            with (
                contextlib.suppress(OSError, EOFError),
                Connection(address, security=security, timeout=20) as fresh,
            ):
                return bool(fresh.call(MetadataRequest(topics=[])).brokers)
            return False

        wait_until(is_served, 60, "there is room again")
    assert broker.pids("worker") + broker.pids("router") == pids
    assert "hangs" not in broker.log()


def test_the_limit_is_shown(broker: Broker) -> None:
    resource = DescribeConfigsResource(BROKER_RESOURCE, "0", ["max.connections"])
    with Anyone(broker, is_operator=True) as operator:
        (answer,) = operator.call(DescribeConfigsRequest([resource])).results
    (config,) = answer.configs
    assert DESCRIPTORS // 2 < int(config.value) < DESCRIPTORS
