"""A CA of one's own and a server certificate signed by it: PEM in and out, no files, no clock.

Keys are P-256: a handshake costs less with them than with RSA, and every client knows them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=397)  # what macOS and browsers accept at most
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)  # of clients whose clock is behind


class Pair(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def make_ca(name: str, now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    signs = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _begun(subject, subject, key.public_key(), now, now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def make_server(ca: Pair, hosts: Iterable[str], now: datetime) -> Pair:
    """A server certificate for these host names and addresses. Raises ValueError."""
    authority = x509.load_pem_x509_certificate(ca.certificate)
    signer = serialization.load_pem_private_key(ca.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the CA's key is not one of an elliptic curve")  # noqa: TRY004
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys(hosts))
    until = min(now + SERVER_LIFETIME, authority.not_valid_after_utc)
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    signs = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _begun(_name(names[0]), authority.subject, key.public_key(), now, until)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def is_good(server: bytes, ca: bytes, hosts: Iterable[str], now: datetime) -> bool:
    """Whether a server certificate is this CA's, names all hosts, and is not near its end."""
    try:
        certificate = x509.load_pem_x509_certificate(server)
        authority = x509.load_pem_x509_certificate(ca)
        certificate.verify_directly_issued_by(authority)
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # damaged in one of many ways: a new one is made
        return False
    alternatives = set(named)
    return (
        all(_alternative(host) in alternatives for host in hosts)
        and certificate.not_valid_after_utc - RENEW_BEFORE > now
    )


def expiry(certificate: bytes) -> datetime:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.Name:
    limit = 64  # of a common name
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:limit])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode() if not host.isascii() else host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
