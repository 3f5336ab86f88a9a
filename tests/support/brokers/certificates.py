"""Certificates for tests: an authority and what it signs, P-256, written as PEM files.

authority = Authority("a CA of tests")
server = authority.issue("localhost").write(tmp_path / "server.pem")   # key and chain in one
authority.write(tmp_path / "ca.pem")
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
LOCAL = ("localhost", "127.0.0.1", "::1")


class Issued(NamedTuple):
    """A certificate and its key, as PEM."""

    certificate: str
    key: str

    def write(self, path: Path) -> Path:
        """Key and chain in one file, as Kafka's `ssl.keystore.location` of type PEM wants it."""
        path.write_text(self.key + self.certificate)
        path.chmod(0o600)
        return path

    def encrypted_key(self, password: str) -> str:
        key = serialization.load_pem_private_key(self.key.encode(), None)
        protection = serialization.BestAvailableEncryption(password.encode())
        return _pem(key, protection)


_SIGNS = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    def __init__(self, name: str = "Moldau test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = (
            _certificate(self._name, self._name, self._key.public_key(), 3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = built.public_bytes(serialization.Encoding.PEM).decode()

    def write(self, path: Path) -> Path:
        path.write_text(self.certificate)
        return path

    def issue(
        self,
        name: str = "localhost",
        hosts: Sequence[str] = LOCAL,
        *,
        days: float = 365,
        subject: x509.Name | None = None,
    ) -> Issued:
        """A certificate that is valid for `days` from now; negative: expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Python 3.13 and newer refuse a certificate that does not say which key signed it.
        by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        if subject is None:
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = (
            _certificate(subject, self._name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_name_of(h) for h in hosts]), False)
            .add_extension(by, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        text = built.public_bytes(serialization.Encoding.PEM).decode()
        return Issued(text, _pem(key, serialization.NoEncryption()))


class Certificates(NamedTuple):
    """Files that most tests need, made once for a run."""

    authority: Authority
    ca: Path  # what clients trust
    server: Path  # key and chain
    client: Path  # key and chain of CN=alice,OU=People,O=Moldau
    client_certificate: Path  # the same in two files
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    authority = Authority()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Moldau"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "People"),
            x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
        ]
    )
    client = authority.issue("alice", subject=subject)
    certificate, key = directory / "client-certificate.pem", directory / "client-key.pem"
    certificate.write_text(client.certificate)
    key.write_text(client.key)
    return Certificates(
        authority,
        authority.write(directory / "ca.pem"),
        authority.issue().write(directory / "server.pem"),
        client.write(directory / "client.pem"),
        certificate,
        key,
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + days * DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - DAY)
        .not_valid_after(end)
    )


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: object, protection: serialization.KeySerializationEncryption) -> str:
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
    ).decode()
