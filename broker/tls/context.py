"""Builds TLS contexts from a listener's settings. Every mistake is reported with its remedy."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from moldau.broker.security.certificate import Certificate, read_certificate
from moldau.broker.security.principals import PrincipalRules
from moldau.broker.settings.processes import ConfigError, TlsSettings

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_JKS, _DER = b"\xfe\xed\xfe\xed", b"\x30"


def make_context(tls: TlsSettings) -> tuple[ssl.SSLContext, Certificate]:
    """Build a context for new connections, and return its certificate. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Resumption saved nothing measurable (P-256), and tickets cost memory and traffic.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    _choose_versions(context, tls)
    certificate = _load_key(context, tls)
    if tls.truststore is not None or tls.trusted is not None:
        _load_trusted(context, tls)
    context.verify_mode = _VERIFY[tls.client_auth]
    return context, certificate


def check_tls(tls: TlsSettings) -> None:
    """Raise ConfigError for settings with which a process could not serve."""
    make_context(tls)
    principal_rules(tls)


def principal_rules(tls: TlsSettings) -> PrincipalRules:
    try:
        return PrincipalRules(tls.principal_rules)
    except ValueError as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {error}") from None


# --- versions and ciphers ---


def _choose_versions(context: ssl.SSLContext, tls: TlsSettings) -> None:
    versions = [_VERSIONS[name] for name in tls.protocols] or list(_VERSIONS.values())
    if tls.ciphers:
        versions = _choose_ciphers(context, tls.ciphers, versions)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _choose_ciphers(
    context: ssl.SSLContext, names: list[str], versions: list[ssl.TLSVersion]
) -> list[ssl.TLSVersion]:
    """Choose cipher suites and return the remaining versions: a version without a named suite is
    not offered, as in Java."""
    fixed = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}
    named = set(names)
    if named & fixed and not fixed <= named:
        raise ConfigError(
            "ssl.cipher.suites: the suites of TLS 1.3 cannot be chosen one by one: name all of "
            f"{', '.join(sorted(fixed))}, or none of them"
        )
    older = [_openssl_name(name) for name in names if name not in fixed]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites: OpenSSL has none of {', '.join(older)}"
            ) from None
    wanted = set()
    if named & fixed:
        wanted.add(ssl.TLSVersion.TLSv1_3)
    if older:
        wanted.add(ssl.TLSVersion.TLSv1_2)
    left = [version for version in versions if version in wanted]
    if not left:
        raise ConfigError("ssl.cipher.suites has no suite for any of ssl.enabled.protocols")
    return left


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite that is given by its IANA name, as in Java."""
    if "_WITH_" not in name:
        return name
    exchange, _, rest = name.removeprefix("TLS_").partition("_WITH_")
    cipher = rest.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    cipher = cipher.replace("_CBC", "")
    prefix = "" if exchange == "RSA" else f"{exchange}-"
    return f"{prefix}{cipher}".replace("_", "-")


# --- keys and certificates ---


def _load_key(context: ssl.SSLContext, tls: TlsSettings) -> Certificate:
    if tls.keystore is not None:
        where = f"ssl.keystore.location {tls.keystore}"
        text = _pem_file(tls.keystore, where)
        _load_pair(context, tls.keystore, tls.key_password, where)
    else:
        where = "ssl.keystore.certificate.chain"
        text = f"{tls.key}\n{tls.certificate_chain}\n"
        # The ssl module only takes a path.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable only by this user
            file.write(text)
            file.flush()
            _load_pair(context, file.name, tls.key_password, where)
    return _first_certificate(text, where)


def _load_pair(context: ssl.SSLContext, path: str, password: str | None, where: str) -> None:
    asked = False

    def answer() -> str:  # without one OpenSSL would prompt at the terminal
        nonlocal asked
        asked = True
        return password or ""

    try:
        context.load_cert_chain(path, password=answer)
    except (ssl.SSLError, ValueError) as fault:
        reason = getattr(fault, "reason", None) or str(fault)
        if asked and password is None:
            hint = "the key is encrypted: set ssl.key.password"
        elif asked:
            hint = "the key cannot be decrypted: is ssl.key.password right?"
        elif "MISMATCH" in reason:
            hint = "key and certificate do not belong together"
        else:
            hint = f"expected a private key and its certificate chain as PEM ({reason})"
        raise ConfigError(f"{where}: {hint}") from None
    except OSError as fault:
        raise ConfigError(f"{where}: cannot be read: {fault.strerror or fault}") from None


def _load_trusted(context: ssl.SSLContext, tls: TlsSettings) -> None:
    where, text = "ssl.truststore.certificates", tls.trusted
    if tls.truststore is not None:
        where = f"ssl.truststore.location {tls.truststore}"
        text = _pem_file(tls.truststore, where)
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as fault:
        reason = getattr(fault, "reason", None) or str(fault)
        raise ConfigError(f"{where}: expected certificates as PEM ({reason})") from None


def _pem_file(path: str, where: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as fault:
        raise ConfigError(f"{where}: cannot be read: {fault.strerror}") from None
    target = os.path.splitext(path)[0]
    if data.startswith(_JKS):
        raise ConfigError(
            f"{where}: it is a JKS file, and only PEM is supported: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {target}.p12 -deststoretype PKCS12 && "
            f"openssl pkcs12 -in {target}.p12 -nodes -out {target}.pem"
        )
    if data.startswith(_DER):
        raise ConfigError(
            f"{where}: it is a PKCS12 or DER file, and only PEM is supported: "
            f"openssl pkcs12 -in {path} -nodes -out {target}.pem"
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: it is not a PEM file") from None


def _first_certificate(text: str, where: str) -> Certificate:
    """Return the first certificate of a chain, which belongs to the key."""
    at = text.find(_BEGIN)
    end = text.find(_END, at)
    try:
        return read_certificate(ssl.PEM_cert_to_DER_cert(text[at : end + len(_END)]))
    except ValueError as fault:
        raise ConfigError(f"{where}: the certificate cannot be read: {fault}") from None
