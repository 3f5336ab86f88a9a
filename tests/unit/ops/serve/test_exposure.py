"""Which listeners let anybody in, and who is asked whether that is meant."""

import logging

import pytest

from moldau.broker.settings.addresses import Protocol
from moldau.broker.settings.processes import ConfigError, Listener, TlsSettings
from moldau.ops.serve.exposure import check_exposure, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("no.such.host.invalid", True),  # binding it fails, and says why
    ],
)
def test_what_is_on_this_machine_only(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def listener(protocol: Protocol, host: str = "0.0.0.0", client_auth: str | None = None) -> Listener:
    tls = None if client_auth is None else TlsSettings(client_auth=client_auth)
    return Listener(name="X", protocol=protocol, host=host, tls=tls)


@pytest.mark.parametrize(
    "known",
    [
        listener("PLAINTEXT", "127.0.0.1"),
        listener("SSL", "::1", "none"),
        listener("SASL_PLAINTEXT"),
        listener("SASL_SSL", "0.0.0.0", "none"),
        listener("SSL", "0.0.0.0", "required"),
    ],
)
def test_who_authenticates_or_stays_here_may_serve(known: Listener) -> None:
    check_exposure([known], insecure=False)


@pytest.mark.parametrize(
    "unknown",
    [listener("PLAINTEXT"), listener("SSL", "::", "none"), listener("SSL", "::", "requested")],
)
def test_the_others_may_not_unless_that_is_meant(
    unknown: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r"listener X on .* does not authenticate its clients"):
        check_exposure([listener("SASL_SSL"), unknown], insecure=False)
    with caplog.at_level(logging.WARNING):
        check_exposure([unknown], insecure=True)
    assert "listener X" in caplog.text
    assert "without authentication (--insecure)" in caplog.text
