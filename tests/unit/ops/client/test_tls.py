"""TLS of the tools: what is checked, and what is said when it fails."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from socket import create_server, socket

import pytest

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH, read_request_header, response_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsResponse
from moldau.ops.client import ClientError, Cluster, Security, security_of
from moldau.ops.client.security import Tls
from moldau.ops.secure.certificates import Pair, make_ca, make_server

API_VERSIONS = APIS[ApiKey.API_VERSIONS]


class Authority:
    """A CA, and the PEM files of a server certificate for 127.0.0.1 that it signed."""

    def __init__(self, directory: Path, hosts: list[str]) -> None:
        now = datetime.now(UTC)
        self.pair = make_ca("test", now)
        self.server = make_server(self.pair, hosts, now)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.pair.certificate)
        self.chain = directory / "server.pem"
        self.chain.write_bytes(self.server.certificate + self.server.key)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, ["127.0.0.1"])


@contextmanager
def accepting(serve: Callable[[socket], object]) -> Iterator[tuple[str, int]]:
    """A server for one connection."""
    with create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            taken, _ = server.accept()
            with taken, suppress(OSError):
                serve(taken)

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()
        thread.join(10)
        assert not thread.is_alive()


def answering(context: ssl.SSLContext) -> Callable[[socket], None]:
    """Answers ApiVersions, in TLS."""

    def serve(taken: socket) -> None:
        with context.wrap_socket(taken, server_side=True) as stream:
            (size,) = LENGTH.unpack(stream.recv(4))
            header = read_request_header(stream.recv(size))
            answer = response_frame(API_VERSIONS, 0, header.correlation_id, ApiVersionsResponse())
            stream.sendall(b"".join(answer))

    return serve


def connect(address: tuple[str, int], security: Security) -> None:
    with Cluster([address], security=security, timeout=10) as cluster:
        cluster.connection()


def test_a_certificate_of_a_known_ca_is_accepted(authority: Authority) -> None:
    for tls in (
        Tls(ca_file=str(authority.ca)),
        Tls(ca_pem=authority.pair.certificate.decode()),
        Tls(checks_certificate=False),
    ):
        with accepting(answering(authority.context())) as address:
            connect(address, Security(tls))


def test_another_ca_is_refused_and_the_setting_named(authority: Authority, tmp_path: Path) -> None:
    other = make_ca("other", datetime.now(UTC))
    tls = Tls(ca_pem=other.certificate.decode())
    with accepting(answering(authority.context())) as address, pytest.raises(
        ClientError, match=r"not to be trusted.*ssl\.truststore\.location"
    ):  # fmt: skip
        connect(address, Security(tls))


def test_another_name_is_refused_unless_names_do_not_count(tmp_path: Path) -> None:
    elsewhere = Authority(tmp_path, ["broker.example.com"])
    given = {"security.protocol": "SSL", "ssl.ca.location": str(elsewhere.ca)}
    with accepting(answering(elsewhere.context())) as address, pytest.raises(
        ClientError, match=r"another name.*ssl\.endpoint\.identification\.algorithm"
    ):  # fmt: skip
        connect(address, security_of(given))
    with accepting(answering(elsewhere.context())) as address:
        connect(address, security_of({**given, "ssl.endpoint.identification.algorithm": ""}))


@pytest.mark.parametrize("kind", ["file", "files", "text"])
def test_a_certificate_of_the_client(authority: Authority, tmp_path: Path, kind: str) -> None:
    context = authority.context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca)
    mine: Pair = authority.server
    both, chain, key = tmp_path / "both.pem", tmp_path / "chain.pem", tmp_path / "key.pem"
    both.write_bytes(mine.key + mine.certificate)
    chain.write_bytes(mine.certificate)
    key.write_bytes(mine.key)
    tls = {
        "file": Tls(ca_file=str(authority.ca), certificate_file=str(both)),
        "files": Tls(
            ca_file=str(authority.ca), certificate_file=str(chain), key_file=str(key)
        ),
        "text": Tls(
            ca_file=str(authority.ca),
            certificate_pem=mine.certificate.decode(),
            key_pem=mine.key.decode(),
        ),
    }[kind]  # fmt: skip
    # The server certificate is not one for clients: OpenSSL would refuse its purpose.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_OPTIONAL
    got: list[object] = []

    def serve(taken: socket) -> None:
        try:
            stream = context.wrap_socket(taken, server_side=True)
        except ssl.SSLCertVerificationError as fault:
            got.append(fault.verify_code)
            raise
        with stream:
            got.append(stream.getpeercert())

    with accepting(serve) as address, pytest.raises(ClientError):
        connect(address, Security(tls))
    assert got == [26]  # X509_V_ERR_INVALID_PURPOSE: it was sent


def test_a_plain_port_says_so(authority: Authority) -> None:
    for serve in (lambda taken: taken.recv(9), lambda taken: taken.sendall(b"HTTP/1.1 400 x\r\n")):
        with accepting(serve) as address, pytest.raises(
            ClientError, match="is this a port with TLS"
        ):  # fmt: skip
            connect(address, Security(Tls(ca_file=str(authority.ca))))


def test_without_tls_on_a_port_with_it(authority: Authority) -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x0a"

    def serve(taken: socket) -> None:
        taken.recv(4096)
        taken.sendall(alert)

    with accepting(serve) as address, pytest.raises(
        ClientError, match=r"speaks TLS.*security\.protocol=SSL.*--command-config"
    ):  # fmt: skip
        connect(address, Security())


def test_a_connection_that_is_closed_hints_at_security() -> None:
    with accepting(lambda taken: taken.recv(4096)) as address, pytest.raises(
        ClientError, match=r"closed the connection.*TLS or a login.*--command-config"
    ):  # fmt: skip
        connect(address, Security())


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        (Tls(ca_file="/nowhere/ca.pem"), "/nowhere/ca.pem, is missing"),
        (Tls(ca_pem="no"), "no CA certificates in PEM format"),
        (Tls(certificate_file="/nowhere/me.pem"), "missing: /nowhere/me.pem"),
        (Tls(certificate_pem="no"), "ssl.keystore.certificate.chain: not a certificate"),
    ],
)
def test_files_that_cannot_be_used(tls: Tls, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        connect(("127.0.0.1", 1), Security(tls))
