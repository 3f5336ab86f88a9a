"""Limits of connections in workers and routers: refused ones are closed, others notice nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.quotas import Anyone, set_quota

PER_IP = 30
BROKER_RESOURCE, SET, DELETE = 4, 0, 1


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    limits = {"max.connections.per.ip": PER_IP, "max.connections": 2000}
    with running_broker(workers=1, broker=limits) as running:
        yield running


def serves(port: int) -> bool:
    """Whether a new connection is served."""
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as made:
            made.sendall(bytes.fromhex("0000000a00120000000000070000"))
            return bool(made.recv(1))
    except ConnectionError:
        return False


@contextlib.contextmanager
def opened(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            for _ in range(count)
        ]


def is_open(connection: socket.socket) -> bool:
    """Asked when those that are refused have been closed."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def set_config(client: Anyone, name: str, value: str | None, node: str = "") -> int:
    change = AlterableConfig(name, SET if value is not None else DELETE, value)
    resource = AlterConfigsResource(BROKER_RESOURCE, node, [change])
    (answer,) = client.call(IncrementalAlterConfigsRequest([resource], False), 1).responses
    code: int = answer.error_code
    return code


@pytest.mark.parametrize("where", ["worker", "router"])
def test_connections_of_one_address(broker: Broker, where: str) -> None:
    port = broker.port if where == "router" else broker.processes("worker")[0]["port"]
    wait_until(lambda: serves(port), 30, "earlier connections are over")
    with opened(port, PER_IP + 20) as made:
        begun = time.monotonic()
        wait_until(lambda: sum(map(is_open, made)) <= PER_IP, 30, "the others are closed")
        assert time.monotonic() - begun < 30
        assert not serves(port)
        time.sleep(0.3)
        assert sum(map(is_open, made)) >= PER_IP - 2  # those that were in before stay
    wait_until(lambda: serves(port), 30, "there is room again")
    assert "max.connections.per.ip" in broker.log()


def test_the_unix_sockets_are_not_counted(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(PER_IP + 5):
            client = stack.enter_context(Anyone(broker, is_operator=True))
            assert client.call(ApiVersionsRequest(), 0).error_code == 0


def port_of(broker: Broker, where: str) -> int:
    worker: int = broker.processes("worker")[0]["port"]
    return broker.port if where == "router" else worker


def until(port: int, *, is_served: bool) -> None:
    """Workers have a change before it is answered; routers are told of it then."""
    wait_until(lambda: serves(port) == is_served, 30, f"served on {port}: {is_served}")


def test_limits_of_workers_change_at_once(broker: Broker) -> None:
    port = port_of(broker, "worker")
    with Anyone(broker, is_operator=True) as operator:
        overrides = "max.connections.per.ip.overrides"
        assert set_config(operator, overrides, "localhost:5") != 0
        assert set_config(operator, overrides, "127.0.0.1:0") == 0
        assert not serves(port)
        assert set_config(operator, overrides, None) == 0
        assert serves(port)
        assert set_config(operator, "max.connections", "0") == 0
        assert not serves(port)
        assert set_config(operator, "max.connections", None) == 0
        assert serves(port)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "0"),
        ("max.connections.per.ip", "0"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0"),
        ("max.connection.creation.rate", "1"),
    ],
)
def test_limits_of_routers_change_too(broker: Broker, name: str, value: str) -> None:
    with Anyone(broker, is_operator=True) as operator:
        until(broker.port, is_served=True)
        assert set_config(operator, name, value) == 0
        until(broker.port, is_served=False)
        old = broker.kill("router")
        broker.wait_restarted("router", 0, old)
        until(broker.port, is_served=False)  # its successor has them too
        assert set_config(operator, name, None) == 0
        until(broker.port, is_served=True)


def test_what_is_set_for_one_worker_is_not_for_routers(broker: Broker) -> None:
    worker = port_of(broker, "worker")
    with Anyone(broker, is_operator=True) as operator:
        assert set_config(operator, "max.connections", "0", node="0") == 0
        assert not serves(worker)
        # The next change comes behind this one: then the router has had both.
        assert set_config(operator, "max.connections.per.ip", "0") == 0
        until(broker.port, is_served=False)
        assert set_config(operator, "max.connections.per.ip", None) == 0
        until(broker.port, is_served=True)
        assert not serves(worker)
        assert set_config(operator, "max.connections", None, node="0") == 0
        assert serves(worker)


@pytest.mark.parametrize("where", ["worker", "router"])
def test_the_quota_of_an_address(broker: Broker, where: str) -> None:
    port = port_of(broker, where)
    with Anyone(broker, is_operator=True) as operator:
        until(port, is_served=True)
        set_quota(operator, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        if where == "worker":
            tries = [serves(port) for _ in range(14)]
            assert tries[:9] == [True] * 9  # ten windows' worth
        until(port, is_served=False)
        set_quota(operator, {"ip": "127.0.0.1"}, connection_creation_rate=None)
        until(port, is_served=True)


def test_idle_connections_disturb_nobody() -> None:
    """A thousand that say nothing, of which the limit keeps most out."""
    limits = {"max.connections": 400}
    with running_broker(workers=1, broker=limits) as running:
        port = running.processes("worker")[0]["port"]
        with Anyone(running) as client:
            before = min(_latency(client) for _ in range(200))
            with opened(port, 1000) as made:
                wait_until(lambda: sum(map(is_open, made)) < 400, 30, "the others are closed")
                during = min(_latency(client) for _ in range(200))
                assert during < before * 3 + 0.01
        assert running.log().count("a connection from") <= 20


def _latency(client: Anyone) -> float:
    begun = time.monotonic()
    client.call(ApiVersionsRequest(), 0)
    return time.monotonic() - begun
