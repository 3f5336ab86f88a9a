"""Who may use the console: those who log in, or whoever could do the same through a listener."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ConfigError, ServeSettings
from moldau.ops.http.settings import ConsoleLogin
from moldau.ops.serve.http_child import (
    NO_PASSWORDS,
    NOT_ENCRYPTED,
    OPEN,
    ConsoleAccess,
    console_access,
    http_tls,
    served_names,
)

SASL = "SASL_PLAINTEXT://127.0.0.1:9092"
AUTHORIZER = {"MOLDAU_BROKER_AUTHORIZER_CLASS_NAME": "standard"}


def mechanisms(text: str) -> dict[str, str]:
    return {
        "MOLDAU_BROKER_SASL_ENABLED_MECHANISMS": text,
        "MOLDAU_BROKER_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": "file:///keys.json",
    }


SCRAM = mechanisms("SCRAM-SHA-512")
LOGIN = ConsoleLogin("SASL_PLAINTEXT", ["SCRAM-SHA-512"])


def load(env: dict[str, str] | None = None, /, **flags: str) -> ServeSettings:
    return load_settings(flags, env or {})


def secured(tmp_path: Path, /, **flags: str) -> ServeSettings:
    return load(secure="true", data_dir=str(tmp_path), **flags)


def test_without_authentication_it_is_the_operators_on_loopback() -> None:
    assert console_access(load()) == ConsoleAccess("on")
    assert console_access(load(http="[::1]:8092")) == ConsoleAccess("on")
    for flags in ({"http": "0.0.0.0:8092"}, {"console_url": "https://moldau.example"}):
        assert console_access(load(**flags)) == ConsoleAccess("off", reason=OPEN)


def test_without_authentication_and_in_a_container_it_has_to_be_meant(tmp_path: Path) -> None:
    url, http = "http://localhost:8092", "0.0.0.0:8092"
    meant = load(insecure="true", http=http, console_url=url)
    assert console_access(meant) == ConsoleAccess("on")
    assert served_names(meant, "0.0.0.0") == ["localhost"]
    for flags in (
        {"insecure": "true"},
        {"console_url": url},
        {"insecure": "true", "console_url": "https://moldau.example"},
    ):
        assert console_access(load(http=http, **flags)) == ConsoleAccess("off", reason=OPEN)
    login = secured(tmp_path, http=http, console_url=url, insecure="true")
    assert console_access(login) == ConsoleAccess("off", reason=NOT_ENCRYPTED)


def test_where_clients_have_passwords_browsers_log_in() -> None:
    assert console_access(load(SCRAM, listeners=SASL)) == ConsoleAccess("on", LOGIN)
    assert console_access(load(SCRAM | AUTHORIZER, listeners=SASL)) == ConsoleAccess("on", LOGIN)
    both = f"PLAINTEXT://127.0.0.1:19092,{SASL}"
    assert console_access(load(SCRAM, listeners=both)) == ConsoleAccess("on", LOGIN)
    some = mechanisms("OAUTHBEARER,PLAIN,SCRAM-SHA-512")
    login = console_access(load(some, listeners=SASL)).login
    assert login == ConsoleLogin("SASL_PLAINTEXT", ["PLAIN", "SCRAM-SHA-512"])


def test_it_is_off_where_users_have_no_passwords() -> None:
    off = ConsoleAccess("off", reason=NO_PASSWORDS)
    assert console_access(load(AUTHORIZER)) == off
    assert console_access(load(mechanisms("OAUTHBEARER"), listeners=SASL)) == off
    certificates = {
        "MOLDAU_BROKER_SSL_KEYSTORE_LOCATION": "/server.pem",
        "MOLDAU_BROKER_SSL_TRUSTSTORE_LOCATION": "/clients.pem",
        "MOLDAU_BROKER_SSL_CLIENT_AUTH": "required",
    }
    assert console_access(load(certificates, listeners="SSL://127.0.0.1:9092")) == off


def test_passwords_are_encrypted_on_the_way(tmp_path: Path) -> None:
    off = ConsoleAccess("off", reason=NOT_ENCRYPTED)
    assert console_access(secured(tmp_path, http="0.0.0.0:8092")) == off
    assert console_access(secured(tmp_path)).mode == "on"
    assert console_access(secured(tmp_path, http="https://0.0.0.0:8092")).mode == "on"
    behind = secured(tmp_path, http="10.0.0.7:8092", console_url="https://moldau.example")
    assert console_access(behind).mode == "on"


def test_the_mode_is_an_option(tmp_path: Path) -> None:
    assert console_access(load(console="read-only")) == ConsoleAccess("read-only")
    assert console_access(secured(tmp_path, console="read-only")).mode == "read-only"
    assert console_access(load(console="off")).mode == "off"
    assert console_access(secured(tmp_path, console="off")).mode == "off"


def test_https_has_the_certificate_of_a_listener_and_asks_browsers_for_none(
    tmp_path: Path,
) -> None:
    assert http_tls(secured(tmp_path)) is None
    tls = http_tls(secured(tmp_path, http="https://127.0.0.1:8092"))
    assert tls is not None
    assert tls.keystore == str(tmp_path / "security" / "server.pem")
    env = {
        "MOLDAU_BROKER_SSL_KEYSTORE_LOCATION": "/server.pem",
        "MOLDAU_BROKER_SSL_TRUSTSTORE_LOCATION": "/clients.pem",
        "MOLDAU_BROKER_SSL_CLIENT_AUTH": "required",
    }
    tls = http_tls(load(env, listeners="SSL://127.0.0.1:9092", http="https://127.0.0.1:8092"))
    assert tls is not None
    assert (tls.keystore, tls.client_auth, tls.truststore) == ("/server.pem", "none", None)
    with pytest.raises(ConfigError, match="no listener has a certificate"):
        http_tls(load(http="https://127.0.0.1:8092"))


def test_the_names_it_answers_to(tmp_path: Path) -> None:
    local = ["localhost", "127.0.0.1", "::1"]
    url = "https://Moldau.example:8443"
    assert served_names(load(), "127.0.0.1") == local
    assert served_names(secured(tmp_path, console_url=url), "::1") == [*local, "moldau.example"]
    assert served_names(secured(tmp_path, console_url=url), "0.0.0.0") == ["moldau.example"]
    assert served_names(secured(tmp_path, http="https://0.0.0.0:1"), "0.0.0.0") == []
