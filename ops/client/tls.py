"""TLS contexts of clients, made of PEM files or PEM text."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.ops.client.security import InvalidSecurity, Tls


def client_context(tls: Tls) -> ssl.SSLContext:
    """Raises InvalidSecurity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host and tls.checks_certificate
    if not tls.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    _trust(context, tls)
    if tls.certificate_file or tls.certificate_pem:
        _introduce(context, tls)
    return context


def _trust(context: ssl.SSLContext, tls: Tls) -> None:
    if not tls.ca_file and not tls.ca_pem:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(tls.ca_file or None, cadata=tls.ca_pem or None)
    except FileNotFoundError:
        raise InvalidSecurity(f"the file of CA certificates, {tls.ca_file}, is missing") from None
    except (OSError, ValueError) as fault:
        where = tls.ca_file or "ssl.truststore.certificates"
        raise InvalidSecurity(f"{where} has no CA certificates in PEM format: {fault}") from None


def _introduce(context: ssl.SSLContext, tls: Tls) -> None:
    """The certificate of the client itself."""
    certificate = tls.certificate_file or "ssl.keystore.certificate.chain"
    with _as_file(tls.certificate_file, tls.certificate_pem) as chain, _as_file(
        tls.key_file, tls.key_pem
    ) as key:  # fmt: skip
        try:
            # Without a password for a key that needs one, OpenSSL would ask at the terminal.
            context.load_cert_chain(chain or "", key, password=lambda: tls.key_password)
        except FileNotFoundError:
            raise InvalidSecurity(
                f"the client's certificate or key is missing: {chain}, {key or 'with the key'}"
            ) from None
        except (OSError, ValueError) as fault:
            raise InvalidSecurity(
                f"{certificate}: not a certificate in PEM format with its key, or "
                f"ssl.key.password is wrong: {fault}"
            ) from None


@contextmanager
def _as_file(path: str, text: str) -> Iterator[str | None]:
    """OpenSSL reads certificates of one's own from files only."""
    if path or not text:
        yield path or None
        return
    descriptor, name = tempfile.mkstemp(suffix=".pem")  # readable by this user only
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        yield name
    finally:
        os.unlink(name)
