"""Subjects of certificates, exactly as Java's X500Principal.getName() writes them: the texts here
were compared with its own."""

import ssl

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.certificate import read_certificate
from tests.support.brokers.certificates import Authority

AUTHORITY = Authority()
Attribute = x509.NameAttribute


def der(*parts: list[x509.NameAttribute[str]], days: float = 10) -> bytes:
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    return ssl.PEM_cert_to_DER_cert(AUTHORITY.issue(subject=name, days=days).certificate)


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        (
            [
                [Attribute(NameOID.COUNTRY_NAME, "CZ")],
                [Attribute(NameOID.STATE_OR_PROVINCE_NAME, "Praha 1")],
                [Attribute(NameOID.LOCALITY_NAME, "Prague, Old Town")],
                [Attribute(NameOID.ORGANIZATION_NAME, 'A "quoted" <b> & =+;#\\ co')],
                [
                    Attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "X"),
                    Attribute(NameOID.COMMON_NAME, "multi"),
                ],
                [Attribute(NameOID.COMMON_NAME, " lead and trail  ")],
            ],
            r"CN=\ lead and trail\ \ ,OU=X+CN=multi,O=A \"quoted\" \<b\> & \=\+\;\#\\ co,"
            r"L=Prague\, Old Town,ST=Praha 1,C=CZ",
        ),
        (
            [
                [Attribute(NameOID.EMAIL_ADDRESS, "a@example.com")],
                [Attribute(NameOID.COMMON_NAME, "žluťoučký 𝄞")],
                [Attribute(NameOID.SERIAL_NUMBER, "123")],
                [Attribute(NameOID.USER_ID, "u1")],
                [Attribute(NameOID.DOMAIN_COMPONENT, "example")],
                [Attribute(NameOID.STREET_ADDRESS, "s")],
                [Attribute(NameOID.GIVEN_NAME, "G")],
            ],
            "2.5.4.42=#0c0147,STREET=s,DC=example,UID=u1,2.5.4.5=#1303313233,CN=žluťoučký 𝄞,"
            "1.2.840.113549.1.9.1=#160d61406578616d706c652e636f6d",
        ),
        (
            [
                [Attribute(NameOID.COMMON_NAME, "#start")],
                [Attribute(NameOID.COMMON_NAME, "  ")],
                [Attribute(ObjectIdentifier("1.2.3.4.5"), "odd")],
                [Attribute(NameOID.COMMON_NAME, "a/b:c?'()*@!")],
            ],
            r"CN=a/b:c?'()*@!,1.2.3.4.5=#0c036f6464,CN=\ \ ,CN=\#start",
        ),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_java_does(
    parts: list[list[x509.NameAttribute[str]]], subject: str
) -> None:
    assert read_certificate(der(*parts)).subject == subject


@pytest.mark.parametrize("days", [10, 365 * 30])  # UTCTime, and from 2050 on GeneralizedTime
def test_when_it_expires(days: int) -> None:
    encoded = der([Attribute(NameOID.COMMON_NAME, "x")], days=days)
    end = x509.load_der_x509_certificate(encoded).not_valid_after_utc
    assert read_certificate(encoded).expires_at == int(end.timestamp())


WHOLE = der([Attribute(NameOID.COMMON_NAME, "x")])


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=4))
def test_other_bytes_are_refused_and_never_crash(at: int, put: bytes) -> None:
    damaged = WHOLE[:at] + put + WHOLE[at + len(put) :]
    for data in (damaged, WHOLE[:at], put):
        try:
            read_certificate(data)
        except ValueError as refusal:
            assert str(refusal)  # noqa: PT017
