"""Sockets that the supervisor binds, for other processes to serve on."""

import os
import socket
import stat
from pathlib import Path

import pytest

from moldau.broker.settings.processes import Listener
from moldau.ops.serve.listeners import Listeners
from moldau.ops.serve.ports import PortTakenError, bind_port
from tests.support.brokers.running import free_ports


def test_each_process_has_its_port_and_its_unix_socket(short_tmp_path: Path) -> None:
    first = free_ports(3)
    ports = [first, first + 1, first + 2]
    workers = [short_tmp_path / f"w{index}" for index in range(2)]
    routers = [short_tmp_path / f"r{index}" for index in range(2)]
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(workers[1]))
    listeners = Listeners.bind([Listener(port=first)], workers, routers)
    try:
        addresses = {
            descriptor: socket.socket(fileno=os.dup(descriptor))
            for descriptor in listeners.descriptors
        }
        names = {at: bound.getsockname() for at, bound in addresses.items()}
        for each in addresses.values():
            each.close()
        for number, bound in enumerate(listeners.workers):
            assert names[bound.by_listener[0][0]] == ("127.0.0.1", ports[1 + number])
            assert names[bound.unix] == str(workers[number])
        for number, bound in enumerate(listeners.routers):
            assert names[bound.by_listener[0][0]] == ("127.0.0.1", first)  # shared
            assert names[bound.unix] == str(routers[number])
        for path in (*workers, *routers):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        # A broker that is starting refuses connections: its processes begin to listen.
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5)
    finally:
        listeners.close()


def test_one_router_does_not_share_its_port(short_tmp_path: Path) -> None:
    port = free_ports(1)
    listeners = Listeners.bind([Listener(port=port)], [], [short_tmp_path / "r"])
    try:
        with socket.socket(fileno=os.dup(listeners.routers[0].by_listener[0][0])) as bound:
            assert not bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
            bound.listen()
        with pytest.raises(PortTakenError, match=f"port {port} .* is taken"):
            bind_port("127.0.0.1", port)
    finally:
        listeners.close()
