"""A port that is taken is named, before anything shares it by mistake."""

import socket

import pytest

from moldau.broker.settings.processes import ConfigError
from moldau.ops.serve.ports import PortTakenError, check_ports
from tests.support.brokers.running import free_ports


def test_free_ports_are_free() -> None:
    first = free_ports(3)
    check_ports("127.0.0.1", [first, first + 1, first + 2])


@pytest.mark.parametrize(("taken", "whose"), [(0, "the bootstrap port"), (2, "worker 1's")])
def test_a_taken_port_is_named_with_the_remedy(taken: int, whose: str) -> None:
    first = free_ports(3)
    with socket.socket() as other:
        # The trap: without care SO_REUSEPORT would share the port with this one.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", first + taken))
        other.listen()
        with pytest.raises(PortTakenError) as raised:
            check_ports("127.0.0.1", [first, first + 1, first + 2])
    assert f"port {first + taken} ({whose}) on 127.0.0.1 is taken" in str(raised.value)
    assert "--port" in str(raised.value)


def test_a_listener_on_every_address_takes_the_port_too() -> None:
    first = free_ports(1)
    with socket.socket() as other:
        other.bind(("0.0.0.0", first))
        other.listen()
        with pytest.raises(PortTakenError):
            check_ports("127.0.0.1", [first])


def test_connections_that_fade_away_do_not_take_a_port() -> None:
    first = free_ports(1)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", first))
        server.listen()
        client = socket.create_connection(("127.0.0.1", first))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps TIME_WAIT
        client.recv(1)
        client.close()
    check_ports("127.0.0.1", [first])


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        check_ports("192.0.2.1", [9092])
    with pytest.raises(ConfigError, match=r"host no\.such\.host\.invalid: "):
        check_ports("no.such.host.invalid", [9092])
