"""The CA and the server certificates of `serve --secure`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from moldau.ops.secure.certificates import RENEW_BEFORE, Pair, expiry, is_good, make_ca, make_server

NOW = datetime(2026, 11, 17, tzinfo=UTC)
HOSTS = ["broker.example.com", "localhost", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def ca() -> Pair:
    return make_ca("Moldau CA", NOW)


def test_it_is_good_for_the_names_it_was_made_for(ca: Pair) -> None:
    server = make_server(ca, HOSTS, NOW)
    assert is_good(server.certificate, ca.certificate, HOSTS, NOW)
    assert is_good(server.certificate, ca.certificate, ["::1"], NOW)
    assert not is_good(server.certificate, ca.certificate, [*HOSTS, "10.0.0.1"], NOW)


def test_it_is_renewed_before_its_end(ca: Pair) -> None:
    server = make_server(ca, HOSTS, NOW)
    end = expiry(server.certificate)
    near = end - RENEW_BEFORE
    assert is_good(server.certificate, ca.certificate, HOSTS, near - timedelta(seconds=1))
    assert not is_good(server.certificate, ca.certificate, HOSTS, near)


def test_it_never_outlives_its_ca(ca: Pair) -> None:
    late = expiry(ca.certificate) - timedelta(days=10)
    assert expiry(make_server(ca, HOSTS, late).certificate) == expiry(ca.certificate)


def test_another_cas_certificate_and_damage_are_not_good(ca: Pair) -> None:
    other = make_ca("Moldau CA", NOW)
    server = make_server(other, HOSTS, NOW)
    assert not is_good(server.certificate, ca.certificate, HOSTS, NOW)
    assert not is_good(b"", ca.certificate, HOSTS, NOW)
    assert not is_good(server.certificate[:200], ca.certificate, HOSTS, NOW)


def test_names_that_are_no_text_of_certificates(ca: Pair) -> None:
    made = make_server(ca, ["bröker.example.com"], NOW)
    certificate = x509.load_pem_x509_certificate(made.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["xn--brker-kua.example.com"]
