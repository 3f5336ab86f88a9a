"""A thousand connections that never finish their handshake: others are served as before, memory is
bounded, and after the time that a handshake has they are gone."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.ops.client.connection import Connection
from moldau.ops.client.security import Security, Tls
from tests.support.brokers.certificates import Certificates
from tests.support.brokers.running import Broker, running_broker

CLIENTS = 1000
MOST_BYTES_EACH = 300_000  # of memory; measured: about 60 KB
HANDSHAKE_S = 10.0
PER_IP = 50  # of connections that are made
HELLO = bytes.fromhex("16030102000100")


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[Broker]:
    keys = {"ssl.keystore.location": certificates.server, "max.connections.per.ip": PER_IP}
    with running_broker(workers=1, listeners=["SSL"], broker=keys) as broker:
        yield broker


def test_half_open_connections_keep_nobody_out(secured: Broker, certificates: Certificates) -> None:
    security = Security(Tls(ca_file=str(certificates.ca)))
    rng = random.Random(1)
    clients: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for role, port in (("router", secured.port), ("worker", secured.port + 1)):
            address = ("127.0.0.1", port)
            process = psutil.Process(secured.pids(role)[0])
            known = opened.enter_context(Connection(address, security=security))
            assert known.call(MetadataRequest(topics=[])).brokers
            before, begun = process.memory_info().rss, time.monotonic()
            mine = []
            for _ in range(CLIENTS):
                client = opened.enter_context(socket.create_connection(address, 30))
                client.sendall(rng.choice((b"", HELLO[:1], HELLO, HELLO + b"\xfc\x03\x03" * 10)))
                mine.append(client)
            # An old connection and new ones are served while all of them wait.
            for _ in range(100):
                assert known.call(MetadataRequest(topics=[])).brokers
            for _ in range(10):
                with Connection(address, security=security) as fresh:
                    assert fresh.call(MetadataRequest(topics=[])).brokers
            still_open = sum(not is_ended(client) for client in mine)
            if time.monotonic() - begun < HANDSHAKE_S:  # else the machine is too busy to tell
                assert still_open == CLIENTS
            assert process.memory_info().rss - before < CLIENTS * MOST_BYTES_EACH
            clients += mine
        for client in clients:
            client.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""
    lines = secured.log().count("no handshake within 10 s")
    assert 0 < lines <= 20  # of two thousand, in two processes


def test_who_is_one_too_many_costs_no_handshake(
    secured: Broker, certificates: Certificates
) -> None:
    security = Security(Tls(ca_file=str(certificates.ca)))
    late = secured.log().count("no handshake within 10 s")
    for port in (secured.port, secured.port + 1):
        with contextlib.ExitStack() as opened:
            for _ in range(PER_IP):
                made = opened.enter_context(Connection(("127.0.0.1", port), security=security))
                assert made.call(MetadataRequest(topics=[])).brokers
            # It says nothing, and would have the time of a handshake otherwise.
            with socket.create_connection(("127.0.0.1", port), 60) as one_more:
                assert one_more.recv(1) == b""
            assert made.call(MetadataRequest(topics=[])).brokers
    assert secured.log().count("is refused: max.connections.per.ip") == 2
    assert secured.log().count("no handshake within 10 s") == late


def is_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
