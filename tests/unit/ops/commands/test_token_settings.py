"""What `moldau tokens create --properties` writes: read back as it was meant."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.ops.client import ClientSettings, security_of
from moldau.ops.client.properties import parse_properties
from moldau.ops.commands.token_settings import connection_settings, properties_text
from moldau.ops.operations.tokens import TokenInfo

TOKEN = TokenInfo("id", b"\xfb\xff" * 32, "User:a\nssl.ca.pem=x", "User:b", (), 1, 2, 3)
PEM = "-----BEGIN CERTIFICATE-----\nabc\\\n-----END CERTIFICATE-----\n"
NO_CLUSTER: Any = None


@pytest.mark.parametrize(
    ("given", "protocol", "mechanism"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u",
          "sasl.password": "p", "ssl.ca.pem": PEM}, "SASL_SSL", "SCRAM-SHA-512"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
          "sasl.username": "u", "sasl.password": "p"}, "SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "me.pem",
          "ssl.truststore.location": "ca.pem"}, "SASL_SSL", "SCRAM-SHA-512"),
    ],
)  # fmt: skip
def test_the_connection_is_kept_and_the_login_replaced(
    given: dict[str, str], protocol: str, mechanism: str
) -> None:
    settings = ClientSettings(security_of(given), None, given)
    text = properties_text(TOKEN, connection_settings(NO_CLUSTER, settings))
    read = parse_properties(text)
    assert read["security.protocol"] == protocol
    assert read.get("ssl.ca.pem") == given.get("ssl.ca.pem")
    assert read.get("ssl.truststore.location") == given.get("ssl.truststore.location")
    assert not read.keys() & {"sasl.username", "sasl.password", "ssl.keystore.location"}
    sasl = security_of(read).sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.password) == (mechanism, "id", TOKEN.password)
    assert sasl.is_delegation_token
