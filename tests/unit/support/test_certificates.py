"""Certificates of tests are ones that TLS accepts."""

import socket
import ssl
import threading

import pytest

from tests.support.brokers.certificates import Authority, Certificates


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, object]:
    """What the server sees of the client's certificate. Raises SSLError."""
    ours, theirs = socket.socketpair()
    seen: list[dict[str, object]] = []

    def accept() -> None:
        try:
            with server.wrap_socket(ours, server_side=True) as accepted:
                accepted.sendall(b"x")
                seen.append({**(accepted.getpeercert() or {})})
        except (ssl.SSLError, OSError):
            ours.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.wrap_socket(theirs, server_hostname="localhost") as connected:
            connected.recv(1)
    finally:
        thread.join(10)
    return seen[0]


def contexts(certificates: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.server)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(certificates.ca)
    client = ssl.create_default_context(cafile=str(certificates.ca))
    client.load_cert_chain(certificates.client)
    return server, client


def test_both_sides_trust_each_other(certificates: Certificates) -> None:
    seen = handshake(*contexts(certificates))
    assert seen["subject"] == (
        (("organizationName", "Moldau"),),
        (("organizationalUnitName", "People"),),
        (("commonName", "alice"),),
    )


def test_an_expired_certificate_is_refused(certificates: Certificates) -> None:
    server, client = contexts(certificates)
    path = certificates.server.with_name("expired.pem")
    server.load_cert_chain(certificates.authority.issue(days=-1).write(path))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(server, client)


def test_one_of_another_authority_is_refused(certificates: Certificates) -> None:
    server, client = contexts(certificates)
    path = certificates.server.with_name("other.pem")
    server.load_cert_chain(Authority("another").issue().write(path))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client)
