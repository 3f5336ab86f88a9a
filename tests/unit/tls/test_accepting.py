"""Handshakes: who never finishes, who sends something else, and who waits behind them."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

from moldau.broker.settings.processes import TlsSettings
from moldau.broker.tls import accepting, handshake_queue
from tests.support.brokers.certificates import Certificates
from tests.support.drivers.connections import until
from tests.support.drivers.tls_server import connected, in_thread, tls_served


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def echoed(address: tuple[str, int], certificates: Certificates) -> bytes:
    with connected(address, certificates.ca) as client:
        client.sendall(b"hello")
        return client.recv(100)


def ended(client: socket.socket) -> bool:
    """Whether the server has closed it; what it said before does not matter."""
    client.settimeout(30)
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1000):
            pass
    return True


@pytest.fixture
def tls(certificates: Certificates) -> TlsSettings:
    return TlsSettings(keystore=str(certificates.server))


async def test_a_handshake_that_never_ends_is_ended(
    certificates: Certificates,
    tls: TlsSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(handshake_queue, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(accepting, "CHECK_S", 0.1)
    begun = (b"", b"\x16", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
    async with tls_served(Echo, tls) as served:
        clients = [socket.create_connection(served.address) for _ in begun]
        for client, sent in zip(clients, begun, strict=True):
            client.sendall(sent)
        assert await in_thread(lambda: echoed(served.address, certificates)) == b"hello"
        assert all(await asyncio.gather(*(in_thread(lambda c=c: ended(c)) for c in clients)))  # type: ignore[misc]
        for client in clients:
            client.close()
        await until(lambda: not served.server.unfinished)
    assert caplog.text.count("no handshake within 0.5 s") == len(begun)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (bytes.fromhex("0000002b00120003"), "a plaintext client on a TLS port?"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP, not TLS"),
        (b"\xff" * 5000, "no TLS connection"),
        (b"\x16\x03\x01\x02\x00" + b"\x07" * 512, "no TLS connection"),
        (b"\x16\x03\x01\xff\xff" + b"\x01" * 65535, "no TLS connection"),
        (b"\x80\x2e\x01\x00\x02" + b"\x00" * 64, "no TLS connection"),  # SSL 2
    ],
)
async def test_garbage_ends_its_own_connection_only(
    certificates: Certificates,
    tls: TlsSettings,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    said: str,
) -> None:
    async with tls_served(Echo, tls) as served:
        with socket.create_connection(served.address) as client:
            client.sendall(sent)
            assert await in_thread(lambda: ended(client))
        assert await in_thread(lambda: echoed(served.address, certificates)) == b"hello"
    assert said in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


async def test_garbage_inside_the_handshake_and_behind_it(
    certificates: Certificates, tls: TlsSettings
) -> None:
    """Every record of a client in turn is followed, or replaced, by something else."""
    async with tls_served(Echo, tls) as served:

        def talk(sent: bytes) -> None:
            with connected(served.address, certificates.ca) as client:
                raw = socket.socket(fileno=client.detach())
            with raw:
                raw.sendall(sent)
                assert ended(raw)

        for sent in (b"\0" * 100, b"\x17\x03\x03\x00\x10" + b"x" * 16, b"\x16\x03\x03\x00\x01\x01"):
            await in_thread(lambda sent=sent: talk(sent))  # type: ignore[misc]
        assert await in_thread(lambda: echoed(served.address, certificates)) == b"hello"


async def test_the_oldest_gives_way_when_there_are_too_many(
    certificates: Certificates, tls: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_queue, "MAX_UNFINISHED", 50)
    async with tls_served(Echo, tls) as served:
        clients = []
        for _ in range(120):
            clients.append(socket.create_connection(served.address))
            await asyncio.sleep(0)
        await until(lambda: served.server.unfinished == 50)
        assert await in_thread(lambda: echoed(served.address, certificates)) == b"hello"
        assert await in_thread(lambda: all(ended(client) for client in clients[:70]))
        for client in clients[-40:]:  # the youngest go on
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)
        for client in clients:
            client.close()
        await until(lambda: not served.server.unfinished)


async def test_no_descriptors_left_is_waited_out(
    certificates: Certificates, tls: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.broker.net.accepting.RETRY_S", 0.05)
    async with tls_served(Echo, tls) as served:
        failing = True
        listening = served.server._listening

        class Full:
            def fileno(self) -> int:
                return listening.fileno()

            def accept(self) -> object:
                if failing:
                    raise OSError(errno.EMFILE, "Too many open files")
                return listening.accept()

            def close(self) -> None:
                listening.close()

        served.server._listening = Full()  # type: ignore[assignment]
        answer = asyncio.ensure_future(in_thread(lambda: echoed(served.address, certificates)))
        await until(lambda: served.server._retry is not None)
        failing = False
        assert await answer == b"hello"


async def test_who_is_refused_costs_no_handshake(
    certificates: Certificates, tls: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_REFUSED", 5)
    full, asked = True, []

    def refuses(ip: str) -> bool:
        asked.append(ip)
        return full

    async with tls_served(Echo, tls, refuses) as served:
        clients = [socket.create_connection(served.address) for _ in range(20)]
        await until(lambda: len(asked) == 20)
        assert not served.server.unfinished
        assert len(served.server._refused) <= 5  # closed later, the others at once
        assert await in_thread(lambda: all(ended(client) for client in clients))
        full = False
        assert await in_thread(lambda: echoed(served.address, certificates)) == b"hello"
        for client in clients:
            client.close()
    assert set(asked) == {"127.0.0.1"}


def test_handshakes_under_way_outlive_a_process_that_was_stopped(
    certificates: Certificates,
) -> None:
    """The stop lasts longer than a handshake may: those that wait are served, those that never
    speak are cut."""
    command = [sys.executable, "-m", "tests.unit.tls.stopped_tls_server", str(certificates.server)]
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with (
        subprocess.Popen(
            [*command, "1.5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
        contextlib.ExitStack() as opened,
    ):
        assert server.stdout is not None
        address = ("127.0.0.1", int(server.stdout.readline()))
        idle = opened.enter_context(socket.create_connection(address, 30))
        clients = []
        for _ in range(20):
            raw = opened.enter_context(socket.create_connection(address, 30))
            received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(received, sent, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            raw.sendall(sent.read())
            received.write(raw.recv(65536))  # the server waits for the rest
            clients.append((raw, client, received, sent))
        server.send_signal(signal.SIGSTOP)
        late = [opened.enter_context(socket.create_connection(address, 30)) for _ in range(20)]
        for raw, client, received, sent in clients:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    received.write(raw.recv(65536))
            client.write(b"hello")
            raw.sendall(sent.read())
        time.sleep(3)  # twice as long as a handshake has
        server.send_signal(signal.SIGCONT)
        for raw, client, received, _ in clients:
            assert _decrypted(raw, client, received) == b"hello"
        for raw in late:
            with context.wrap_socket(raw, server_hostname="localhost") as made:
                made.sendall(b"late")
                assert made.recv(10) == b"late"
        assert ended(idle)
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(30) == 0


def _decrypted(raw: socket.socket, client: ssl.SSLObject, received: ssl.MemoryBIO) -> bytes:
    while True:
        try:
            return client.read(10)
        except ssl.SSLWantReadError:
            piece = raw.recv(65536)
            assert piece, "it was cut"
            received.write(piece)
