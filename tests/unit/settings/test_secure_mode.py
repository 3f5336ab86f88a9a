"""What --secure means for the other settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.broker.settings.secure_mode import (
    makes_certificate,
    makes_token_secret,
    with_token_secret,
)


def load(env: dict[str, str] | None = None, **flags: str) -> ServeSettings:
    return load_settings({"data_dir": "/data", "secure": "true", **flags}, env or {})


def test_sasl_ssl_on_the_port_an_authorizer_and_an_administrator() -> None:
    settings = load(port="19092")
    (listener,) = settings.listening
    assert (listener.protocol, listener.port, settings.port) == ("SASL_SSL", 19092, 19092)
    assert listener.tls is not None
    assert listener.tls.keystore == "/data/security/server.pem"
    assert settings.broker["authorizer.class.name"] == "standard"
    assert settings.broker["super.users"] == "User:admin"
    assert makes_certificate(settings)


def test_without_it_nothing_of_that() -> None:
    settings = load(secure="false")
    assert settings.listening[0].protocol == "PLAINTEXT"
    assert settings.broker == {}
    assert not makes_certificate(settings)


def test_what_is_set_by_name_stays() -> None:
    listeners = "PLAINTEXT://127.0.0.1:9092,OUTSIDE://0.0.0.0:19092"
    settings = load(
        {
            "MOLDAU_BROKER_SUPER_USERS": "User:ops;User:admin",
            "MOLDAU_BROKER_SSL_KEYSTORE_LOCATION": "/etc/own.pem",
        },
        listeners=listeners,
        listener_security_protocol_map="OUTSIDE:SASL_SSL",
    )
    assert [each.protocol for each in settings.listening] == ["PLAINTEXT", "SASL_SSL"]
    assert settings.listening[1].tls is not None
    assert settings.listening[1].tls.keystore == "/etc/own.pem"
    assert settings.broker["super.users"] == "User:ops;User:admin"
    assert not makes_certificate(settings)


def test_a_certificate_as_text_is_one_of_its_own() -> None:
    env = {
        "MOLDAU_BROKER_SSL_KEYSTORE_CERTIFICATE_CHAIN": "-----BEGIN CERTIFICATE-----",
        "MOLDAU_BROKER_SSL_KEYSTORE_KEY": "-----BEGIN PRIVATE KEY-----",
    }
    settings = load(env)
    assert settings.listening[0].tls is not None
    assert settings.listening[0].tls.keystore is None


def test_it_is_a_key_of_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "moldau.toml"
    file.write_text('secure = true\ndata-dir = "/data"\n')
    assert load_settings({}, {}, str(file)).secure
    file.write_text("secured = true\n")
    with pytest.raises(ConfigError, match="did you mean 'secure'"):
        load_settings({}, {}, str(file))


def test_delegation_tokens_get_a_secret_unless_one_is_set() -> None:
    settings = load()
    assert makes_token_secret(settings)
    with_one = with_token_secret(settings, "made")
    assert with_one.broker == {**settings.broker, "delegation.token.secret.key": "made"}
    for given in ("mine", ""):  # empty: no tokens
        named = load({"MOLDAU_BROKER_DELEGATION_TOKEN_SECRET_KEY": given})
        assert not makes_token_secret(named)
        assert named.broker["delegation.token.secret.key"] == given
    assert not makes_token_secret(load(secure="false"))
