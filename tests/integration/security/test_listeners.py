"""Several listeners at once: each names brokers by its own addresses, and speaks what it should."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.ops.client.connection import Connection, Versions
from moldau.ops.client.security import PLAINTEXT, Security, Tls
from moldau.testing import BrokerFailed
from tests.support.brokers.certificates import Authority, Certificates
from tests.support.brokers.running import Broker, running_broker, wait_until

WORKERS = 2
NAMES = ("INSIDE", "SSL", "MUTUAL")
OLD = {"FindCoordinator": Versions(0, 3)}
# Alice and her kind by their names; others in capitals have none.
RULES = "RULE:^CN=([a-z]+),OU=People,.*$/$1/"


class Secured(NamedTuple):
    broker: Broker
    certificates: Certificates

    def security(self, listener: str) -> Security:
        if listener == "INSIDE":
            return PLAINTEXT
        ca = str(self.certificates.ca)
        if listener == "SSL":
            return Security(Tls(ca_file=ca))
        return Security(Tls(ca_file=ca, certificate_file=str(self.certificates.client)))

    def address(self, listener: str, worker: int | None = None) -> tuple[str, int]:
        """A router's, or a worker's own."""
        host, _, port = self.broker.bootstraps[listener].partition(":")
        return host, int(port) if worker is None else int(port) + 1 + worker

    @contextlib.contextmanager
    def connected(self, listener: str, worker: int | None = None) -> Iterator[Connection]:
        security = self.security(listener)
        with Connection(
            self.address(listener, worker), security=security, versions=OLD
        ) as connection:
            yield connection


def options(certificates: Certificates, **more: object) -> dict[str, Any]:
    return {
        "workers": WORKERS,
        "listeners": NAMES,
        "listener_security_protocol_map": "INSIDE:PLAINTEXT,MUTUAL:SSL",
        "broker": {
            "ssl.keystore.location": certificates.server,
            "ssl.truststore.location": certificates.ca,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": RULES,
        },
        **more,
    }


@pytest.fixture(scope="module", params=["workers", "router"])
def advertise(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def secured(advertise: str, certificates: Certificates) -> Iterator[Secured]:
    with running_broker(**options(certificates, advertise=advertise)) as broker:
        yield Secured(broker, certificates)


@pytest.mark.parametrize("worker", [None, 0, 1])
@pytest.mark.parametrize("listener", NAMES)
def test_brokers_are_named_by_the_listener_that_the_client_used(
    secured: Secured, advertise: str, listener: str, worker: int | None
) -> None:
    if advertise == "router":
        expected = {0: secured.address(listener)}
    else:
        expected = {index: secured.address(listener, index) for index in range(WORKERS)}
    with secured.connected(listener, worker) as connection:
        metadata = connection.call(MetadataRequest(topics=[]))
        assert {b.node_id: (b.host, b.port) for b in metadata.brokers} == expected
        cluster = connection.call(DescribeClusterRequest())
        assert {b.broker_id: (b.host, b.port) for b in cluster.brokers} == expected
        for group in ("a", "b", "c", "d"):
            found = connection.call(FindCoordinatorRequest(key=group))
            assert (found.host, found.port) == expected[found.node_id]


def test_the_first_listener_is_the_one_of_the_ready_line_and_the_status(secured: Secured) -> None:
    host, port = secured.address("INSIDE")
    assert f"bootstrap={host}:{port} " in secured.broker.ready_line
    ports = {
        (each["role"], each["index"]): each["port"]
        for each in secured.broker.status()["processes"]
        if each["role"] in {"worker", "router"}
    }
    assert ports == {("router", 0): port, ("worker", 0): port + 1, ("worker", 1): port + 2}


# --- who gets in ---


@pytest.mark.parametrize("worker", [None, 1])
def test_client_certificates_are_required_where_the_listener_says_so(
    secured: Secured, worker: int | None
) -> None:
    at = secured.address("MUTUAL", worker)
    ca = str(secured.certificates.ca)
    directory = secured.certificates.ca.parent
    nobody = secured.certificates.authority.issue("nobody").write(directory / "nobody.pem")
    foreign = Authority("another").issue("alice").write(directory / "foreign.pem")
    for certificate in ("", str(foreign), str(nobody)):
        tls = Tls(ca_file=ca, certificate_file=certificate)
        with (
            pytest.raises((OSError, EOFError)),
            Connection(at, security=Security(tls)) as connection,
        ):
            connection.call(MetadataRequest(topics=[]))
    reasons = (
        "no TLS connection: it showed no certificate, which ssl.client.auth requires",
        "no TLS connection: its certificate: unable to get local issuer certificate",
        "ssl.principal.mapping.rules has none for CN=nobody",
    )
    wait_until(lambda: all(each in secured.broker.log() for each in reasons), 60, "log lines")


@pytest.mark.parametrize("worker", [None, 0])
def test_a_client_of_the_other_kind_is_recognised_and_the_log_says_so(
    secured: Secured, worker: int | None
) -> None:
    role = "router-0" if worker is None else f"worker-{worker}"
    plain, tls = secured.address("INSIDE", worker), secured.address("SSL", worker)
    context = ssl.create_default_context(cafile=str(secured.certificates.ca))
    with socket.create_connection(plain, 10) as client, pytest.raises(OSError):
        context.wrap_socket(client, server_hostname="localhost")
    with pytest.raises((OSError, EOFError, ValueError)), Connection(tls) as connection:
        connection.call(MetadataRequest(topics=[]))

    def said(text: str) -> bool:
        return any(role in line and text in line for line in secured.broker.log().splitlines())

    wait_until(lambda: said("a TLS client on a plaintext port"), 60, "a log line")
    wait_until(lambda: said("it does not speak TLS: a plaintext client"), 60, "a log line")


def test_a_flood_of_misdirected_clients_does_not_flood_the_log(secured: Secured) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01"
    frame = bytes.fromhex("0000002b00120003")
    for listener, sent in (("INSIDE", hello), ("SSL", frame)):
        for _ in range(100):
            with socket.create_connection(secured.address(listener, 1), 10) as client:
                client.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(100) in {b"", *ALERTS}
    lines = [line for line in secured.broker.log().splitlines() if "worker-1" in line]
    for text in ("a TLS client on a plaintext port", "a plaintext client on a TLS port"):
        assert 0 < sum(text in line for line in lines) <= 10


ALERTS = {bytes.fromhex(f"1503{minor}0002{alert}") for minor in ("01", "03") for alert in ("0246",)}


# --- what is refused at start ---


def test_other_machines_are_not_served_without_authentication(
    start_moldau: Callable[..., Broker],
) -> None:
    with pytest.raises(BrokerFailed) as failed:
        start_moldau(workers=1, host="0.0.0.0")
    assert failed.value.exit_code == 3
    log = failed.value.log
    assert "listener PLAINTEXT on 0.0.0.0:" in log
    assert "does not authenticate its clients" in log
    for remedy in ("--secure", "SASL", "ssl.client.auth=required", "127.0.0.1", "--insecure"):
        assert remedy in log


def test_on_purpose_they_are(start_moldau: Callable[..., Broker]) -> None:
    broker = start_moldau(workers=1, host="0.0.0.0", insecure="true")
    assert "serves other machines without authentication (--insecure)" in broker.log()


def test_a_certificate_that_cannot_be_used_is_refused_at_start(
    certificates: Certificates, start_moldau: Callable[..., Broker]
) -> None:
    keys = {"ssl.keystore.location": certificates.ca}
    with pytest.raises(BrokerFailed) as failed:
        start_moldau(workers=1, listeners=["SSL"], broker=keys)
    assert failed.value.exit_code == 3
    assert "moldau: listener SSL: ssl.keystore.location" in failed.value.log
    assert "expected a private key" in failed.value.log
