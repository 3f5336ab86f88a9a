"""Files of client settings, as Java's clients and librdkafka have them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from moldau.ops.client import (
    PLAINTEXT,
    InvalidSecurity,
    Security,
    read_client_settings,
    security_of,
)
from moldau.ops.client.properties import parse_jaas, parse_properties
from moldau.ops.client.security import Sasl, Tls

JAVA = """\
# of a client in Java
bootstrap.servers = broker.example.com:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="alice" \\
    password="a\\\\"b;c";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/moldau/ca.pem
group.id=billing
"""
LIBRDKAFKA = """\
security.protocol=sasl_ssl
sasl.mechanisms=SCRAM-SHA-512
sasl.username=alice
sasl.password=a"b;c
ssl.ca.location=/etc/moldau/ca.pem
"""
WANTED = Security(
    Tls(ca_file="/etc/moldau/ca.pem"), Sasl("SCRAM-SHA-512", "alice", 'a"b;c')
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "bootstrap"), [(JAVA, "broker.example.com:9092"), (LIBRDKAFKA, None)]
)
def test_both_kinds_of_files_say_the_same(tmp_path: Path, text: str, bootstrap: str | None) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    settings = read_client_settings(str(path))
    assert settings.security == WANTED
    assert settings.bootstrap == bootstrap
    assert pickle.loads(pickle.dumps(settings.security)) == WANTED


def test_javas_properties() -> None:
    text = "a=1\n! no\n b : 2\\\n   3\nc\\ d 4 5\ne=\\u00e4\\n\\\\\nf=\n\ng=x=y\nh=C:\\\\dir\\\\\n"
    assert parse_properties(text) == {
        "a": "1", "b": "23", "c d": "4 5", "e": "ä\n\\", "f": "", "g": "x=y", "h": "C:\\dir\\",
    }  # fmt: skip


def test_options_of_a_login_module() -> None:
    text = "x.PlainLoginModule required username='a b' password=plain;"
    assert parse_jaas(text) == {"username": "a b", "password": "plain"}


def test_secrets_are_not_printed() -> None:
    security = Security(
        Tls(key_pem="SECRET", key_password="SECRET"), Sasl("PLAIN", "alice", "SECRET", "SECRET")
    )
    assert "SECRET" not in repr(security)
    assert "alice" in repr(security)


def test_no_security_is_plaintext() -> None:
    assert security_of({"group.id": "x", "ssl.ca.location": "ca.pem"}) == PLAINTEXT
    assert PLAINTEXT.protocol == "PLAINTEXT"
    assert WANTED.protocol == "SASL_SSL"


def test_a_token_or_its_file() -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(InvalidSecurity, match="needs a token"):
        security_of(given)
    with pytest.raises(InvalidSecurity, match="only file: URLs"):
        security_of({**given, "sasl.oauthbearer.token.endpoint.url": "https://id.example.com"})
    found = security_of({**given, "sasl.oauthbearer.token.endpoint.url": "file:///run/token"})
    assert found == Security(None, Sasl("OAUTHBEARER", token_file="/run/token"))
    found = security_of({**given, "sasl.oauthbearer.token": "abc"})
    assert found == Security(None, Sasl("OAUTHBEARER", token="abc"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"security.protocol": "TLS"}, "want PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "want PLAIN"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"},
            "needs a password",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k.jks"}, "keytool -importkeystore"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "PKCS12"}, "openssl pkcs12"),
        ({"sasl.pasword": "x"}, "did you mean sasl.password"),
    ],
)
def test_what_cannot_be_used_says_what_to_write(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSecurity, match=why):
        security_of(given)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurity, match="cannot be read"):
        read_client_settings(str(tmp_path / "missing"))
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(InvalidSecurity, match="binary file"):
        read_client_settings(str(tmp_path / "store.jks"))


@pytest.mark.parametrize(
    ("options", "mechanism", "is_token"),
    [
        ('tokenauth="true"', "SCRAM-SHA-256", True),
        ("tokenauth=true", "SCRAM-SHA-512", True),
        ("tokenauth=TRUE", "SCRAM-SHA-512", True),
        ("tokenauth=false", "SCRAM-SHA-256", False),
        ("", "SCRAM-SHA-256", False),
        ("tokenauth=true", "PLAIN", False),  # Java ignores it there, too
    ],
)
def test_a_delegation_token_is_recognised(options: str, mechanism: str, is_token: bool) -> None:
    jaas = f'x.ScramLoginModule required username="id" password="HMAC==" {options};'
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    sasl = security_of(given).sasl
    assert sasl is not None
    assert (sasl.username, sasl.password) == ("id", "HMAC==")
    assert sasl.is_delegation_token is is_token
    assert "HMAC" not in repr(sasl)
