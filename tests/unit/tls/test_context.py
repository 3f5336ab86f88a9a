"""TLS contexts: what is accepted, and what mistakes say."""

import ssl
import subprocess
from pathlib import Path

import pytest

from moldau.broker.settings.processes import ConfigError, TlsSettings
from moldau.broker.tls.context import check_tls, make_context
from tests.support.brokers.certificates import Authority, Certificates

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
ECDSA = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
ALL_13 = ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]


def test_defaults_are_safe(certificates: Certificates) -> None:
    context, certificate = make_context(TlsSettings(keystore=str(certificates.server)))
    assert (context.minimum_version, context.maximum_version) == (V12, V13)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_TICKET
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.num_tickets == 0
    assert context.verify_mode is ssl.CERT_NONE
    assert certificate.subject == "CN=localhost"


@pytest.mark.parametrize(
    ("protocols", "ciphers", "versions"),
    [
        (["TLSv1.3"], [], (V13, V13)),
        (["TLSv1.2"], [], (V12, V12)),
        ([], [ECDSA], (V12, V12)),  # as in Java: no suite of 1.3, no 1.3
        ([], ["ECDHE-ECDSA-CHACHA20-POLY1305"], (V12, V12)),
        ([], [ECDSA, *ALL_13], (V12, V13)),
        ([], ALL_13, (V13, V13)),
    ],
)
def test_versions_and_ciphers(
    certificates: Certificates,
    protocols: list[str],
    ciphers: list[str],
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion],
) -> None:
    tls = TlsSettings(keystore=str(certificates.server), protocols=protocols, ciphers=ciphers)
    context, _ = make_context(tls)
    assert (context.minimum_version, context.maximum_version) == versions


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_suites_have_javas_names_or_openssls(
    certificates: Certificates, iana: str, openssl: str
) -> None:
    context, _ = make_context(TlsSettings(keystore=str(certificates.server), ciphers=[iana]))
    names = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert names == [openssl]


def test_key_and_chain_as_texts_and_an_encrypted_key(certificates: Certificates) -> None:
    issued = certificates.authority.issue()
    plain = TlsSettings(certificate_chain=issued.certificate, key=issued.key)
    assert make_context(plain)[1].subject == "CN=localhost"
    encrypted = TlsSettings(
        certificate_chain=issued.certificate,
        key=issued.encrypted_key("secret"),
        key_password="secret",
    )
    assert make_context(encrypted)[1].subject == "CN=localhost"


def test_authorities_are_asked_for_and_trusted(certificates: Certificates) -> None:
    for trust in ({"truststore": str(certificates.ca)}, {"trusted": certificates.ca.read_text()}):
        tls = TlsSettings(keystore=str(certificates.server), client_auth="required", **trust)  # type: ignore[arg-type]
        context, _ = make_context(tls)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1


def test_mistakes_name_cause_and_remedy(certificates: Certificates, tmp_path: Path) -> None:
    issued, other = certificates.authority.issue(), Authority().issue()
    server = str(certificates.server)

    def written(name: str, data: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    locked = issued.encrypted_key("secret") + issued.certificate
    for tls, reason in (
        (TlsSettings(keystore="/no/such.pem"), "/no/such.pem: cannot be read: No such file"),
        (TlsSettings(keystore=written("empty", "")), "expected a private key and its cert"),
        (TlsSettings(keystore=written("cert", issued.certificate)), "expected a private key"),
        (TlsSettings(keystore=written("pair", issued.key + other.certificate)), "do not belong"),
        (TlsSettings(keystore=written("locked", locked)), "encrypted: set ssl.key.password"),
        (TlsSettings(keystore=written("wrong", locked), key_password="x"), "is .* right"),
        (TlsSettings(keystore=written("a.jks", b"\xfe\xed\xfe\xed\0")), "a.jks -destkeystore"),
        (TlsSettings(keystore=written("a.p12", b"\x30\x82\x01")), "openssl pkcs12 -in .*a.p12"),
        (TlsSettings(keystore=written("binary", b"\xff\xfe")), "not a PEM file"),
        (TlsSettings(keystore=server, trusted="x"), "expected certificates as PEM"),
        (TlsSettings(keystore=server, truststore=written("t", "x")), "t: expected certificates"),
        (TlsSettings(keystore=server, ciphers=["NO-SUCH"]), "OpenSSL has none of NO-SUCH"),
        (TlsSettings(keystore=server, ciphers=ALL_13[:1]), "cannot be chosen one by one"),
        (
            TlsSettings(keystore=server, ciphers=[ECDSA], protocols=["TLSv1.3"]),
            "no suite for any of ssl.enabled.protocols",
        ),
        (TlsSettings(keystore=server, principal_rules="x"), "ssl.principal.mapping.rules: 'x'"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_tls(tls)


def test_the_command_that_converts_works(certificates: Certificates, tmp_path: Path) -> None:
    """That of the message, with a password instead of a prompt."""
    store = tmp_path / "server.p12"
    made = f"openssl pkcs12 -export -in {certificates.server} -out {store} -passout pass:secret"
    subprocess.run(made.split(), check=True)
    with pytest.raises(ConfigError, match="only PEM is supported") as refused:
        make_context(TlsSettings(keystore=str(store)))
    command = str(refused.value).split("supported: ")[1].split()
    subprocess.run([*command, "-passin", "pass:secret"], check=True)
    assert make_context(TlsSettings(keystore=command[-1]))[1].subject == "CN=localhost"
