"""Certificates that change while they are served."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from moldau.broker.net.peer import identify
from moldau.broker.security.certificate import read_certificate
from moldau.broker.security.identity import Identity, Role
from moldau.broker.settings.processes import Listener, TlsSettings
from tests.support.brokers.certificates import Authority, Certificates
from tests.support.drivers.connections import until
from tests.support.drivers.tls_server import Served, connected, in_thread, tls_served


class Silent(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"x")  # type: ignore[attr-defined]


def shown(served: Served, ca: Path, certificate: Path | None = None) -> str:
    """The subject of the server's certificate. Blocks; raises OSError when it is refused."""
    with connected(served.address, ca, certificate) as client:
        if client.recv(1) != b"x":
            raise ConnectionError("refused")
        return read_certificate(client.getpeercert(True) or b"").subject


async def test_a_new_pair_is_used_when_the_file_changes_and_a_bad_one_is_not(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    authority, ca = certificates.authority, certificates.ca
    path = authority.issue("one").write(tmp_path / "server.pem")
    async with tls_served(Silent, TlsSettings(keystore=str(path), reload_ms=20)) as served:
        watching = asyncio.ensure_future(served.certificates.watch())
        old = await in_thread(lambda: connected(served.address, ca))
        assert await in_thread(lambda: shown(served, ca)) == "CN=one"
        replaced = authority.issue("two").write(tmp_path / "new.pem")
        os.replace(replaced, path)
        await until(lambda: "uses its new certificates" in caplog.text)
        assert await in_thread(lambda: shown(served, ca)) == "CN=two"
        path.write_text("half of a fi")
        await until(lambda: "goes on with the certificates it has" in caplog.text)
        assert "expected a private key" in caplog.text
        assert await in_thread(lambda: shown(served, ca)) == "CN=two"
        path.unlink()
        await until(lambda: "cannot be read: No such file" in caplog.text)
        assert await in_thread(lambda: shown(served, ca)) == "CN=two"
        authority.issue("three").write(path)
        await until(lambda: caplog.text.count("uses its new certificates") == 2)
        assert await in_thread(lambda: shown(served, ca)) == "CN=three"
        with old:
            assert await in_thread(lambda: old.recv(1)) == b"x"  # it goes on as it was
        watching.cancel()


async def test_an_authority_that_is_taken_out_is_not_trusted_any_more(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = Authority("another")
    theirs = other.issue("bob").write(tmp_path / "bob.pem")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(certificates.authority.certificate + other.certificate)
    tls = TlsSettings(
        keystore=str(certificates.server), truststore=str(trusted), client_auth="required"
    )
    async with tls_served(Silent, tls) as served:
        ca = certificates.ca
        assert await in_thread(lambda: shown(served, ca, theirs)) == "CN=localhost"
        trusted.write_text(certificates.authority.certificate)
        served.certificates.reload()  # as SIGHUP does
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await in_thread(lambda: shown(served, ca, theirs))
        assert await in_thread(lambda: shown(served, ca, certificates.client)) == "CN=localhost"


@pytest.mark.parametrize(("days", "words"), [(365, None), (20, "expires on"), (-0.5, "EXPIRED on")])
async def test_expiry_is_told_at_start(
    certificates: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    days: float,
    words: str | None,
) -> None:
    caplog.set_level("INFO")
    path = certificates.authority.issue(days=days).write(tmp_path / "server.pem")
    async with tls_served(Silent, TlsSettings(keystore=str(path))) as served:
        served.certificates.warn_of_expiry()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "which is valid until" in caplog.text
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]


@pytest.mark.parametrize(
    ("rules", "with_certificate", "principal"),
    [
        ("DEFAULT", True, "User:CN=alice,OU=People,O=Moldau"),
        ("RULE:^CN=(.*?),.*$/$1/U", True, "User:ALICE"),
        ("DEFAULT", False, "User:ANONYMOUS"),
        ("RULE:^CN=bob,.*$/bob/", True, None),
    ],
)
@pytest.mark.parametrize("sasl", [False, True])
async def test_a_certificate_is_an_identity_unless_there_is_a_login(
    certificates: Certificates,
    rules: str,
    with_certificate: bool,
    principal: str | None,
    sasl: bool,
) -> None:
    tls = TlsSettings(
        keystore=str(certificates.server),
        truststore=str(certificates.ca),
        client_auth="requested",
        principal_rules=rules,
    )
    listener = Listener(name="X", protocol="SASL_SSL" if sasl else "SSL", tls=tls)
    found: list[Identity | None] = []

    class Identifying(Silent):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            found.append(identify(transport, listener))
            super().connection_made(transport)

    certificate = certificates.client if with_certificate else None
    async with tls_served(Identifying, tls) as served:
        await in_thread(lambda: shown(served, certificates.ca, certificate))
    (identity,) = found
    if sasl:
        principal = "User:ANONYMOUS"
    if principal is None:
        assert identity is None
    else:
        assert identity is not None
        found_identity = (identity.principal, identity.host, identity.listener, identity.role)
        assert found_identity == (principal, "127.0.0.1", "X", Role.CLIENT)
