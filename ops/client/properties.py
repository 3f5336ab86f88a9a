"""Client settings in a file: Java's client.properties, or librdkafka's names (kcat -F).

The file may be one that other clients use too, so settings that concern neither the bootstrap
address nor security are skipped. A name close to one that does is a mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from moldau.ops.client.security import (
    MECHANISMS,
    OAUTHBEARER,
    PLAINTEXT,
    PROTOCOLS,
    SCRAM,
    InvalidSecurity,
    Sasl,
    Security,
    Tls,
)

# Under the name used here: Java's names, then librdkafka's.
NAMES: Mapping[str, tuple[str, ...]] = {
    "protocol": ("security.protocol",),
    "mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "jaas": ("sasl.jaas.config",),
    "username": ("sasl.username",),
    "password": ("sasl.password",),
    "token": ("sasl.oauthbearer.token",),
    "token_url": ("sasl.oauthbearer.token.endpoint.url",),
    "ca_file": ("ssl.truststore.location", "ssl.ca.location"),
    "ca_pem": ("ssl.truststore.certificates", "ssl.ca.pem"),
    "ca_type": ("ssl.truststore.type",),
    "certificate_file": ("ssl.keystore.location", "ssl.certificate.location"),
    "certificate_pem": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    "certificate_type": ("ssl.keystore.type",),
    "key_file": ("ssl.key.location",),
    "key_pem": ("ssl.keystore.key", "ssl.key.pem"),
    "key_password": ("ssl.key.password",),
    "identification": ("ssl.endpoint.identification.algorithm",),
    "verification": ("enable.ssl.certificate.verification",),
}
_KNOWN = [name for names in NAMES.values() for name in names]
# Of clients that have more to set here than this one; close to names above, but no mistake.
_OTHERS = frozenset({"ssl.keystore.password", "ssl.truststore.password", "ssl.key.passphrase"})
_STORES = {"JKS", "PKCS12"}
_JAAS_OPTION = re.compile(r"""(\w[\w.]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S+))""")


class ClientSettings(NamedTuple):
    security: Security = PLAINTEXT
    bootstrap: str | None = None
    properties: Mapping[str, str] = {}  # those that make `security`


def read_client_settings(path: str) -> ClientSettings:
    """Raises InvalidSecurity."""
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise InvalidSecurity(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSecurity(f"{path}: want lines of NAME=VALUE; this is a binary file") from None
    properties = parse_properties(text)
    try:
        security = security_of(properties)
    except InvalidSecurity as error:
        raise InvalidSecurity(f"{path}: {error}") from None
    used = {name: properties[name] for name in _KNOWN if name in properties}
    return ClientSettings(security, properties.get("bootstrap.servers") or None, used)


def security_of(properties: Mapping[str, str]) -> Security:
    """Raises InvalidSecurity."""
    _refuse_misspelt(properties)
    given = {
        field: properties[name].strip()
        for field, names in NAMES.items()
        for name in names
        if properties.get(name) is not None
    }
    protocol = given.get("protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidSecurity(f"security.protocol={protocol}: want {', '.join(PROTOCOLS)}")
    return Security(
        _tls(given) if protocol.endswith("SSL") else None,
        _sasl(given) if protocol.startswith("SASL") else None,
    )


def parse_properties(text: str) -> dict[str, str]:
    """Java's format, of which librdkafka's NAME=VALUE is a part."""
    lines = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text).splitlines()
    found = {}
    for line in map(str.strip, lines):
        if line and line[0] not in "#!":
            name, value = _split(line)
            found[_unescaped(name)] = _unescaped(value)
    return found


def _split(line: str) -> tuple[str, str]:
    """Split at the first `=`, `:` or blank that is not escaped by a backslash."""
    match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
    assert match is not None
    return match[1], match[2]


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replaced, text, flags=re.DOTALL)


def _refuse_misspelt(properties: Mapping[str, str]) -> None:
    for name in properties:
        if name in _KNOWN or name in _OTHERS or name.split(".")[0] not in ("ssl", "sasl"):
            continue
        close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.93)
        if close:
            raise InvalidSecurity(f"unknown setting {name}; did you mean {close[0]}?")


# --- TLS ---


def _tls(given: Mapping[str, str]) -> Tls:
    for what in ("ca", "certificate"):
        kind = given.get(f"{what}_type", "PEM").upper()
        file = given.get(f"{what}_file", "")
        if kind != "PEM" or file.endswith((".jks", ".p12", ".pfx")):
            raise InvalidSecurity(_needs_pem(what, file, kind if kind in _STORES else "JKS"))
    return Tls(
        ca_file=given.get("ca_file", ""),
        ca_pem=given.get("ca_pem", ""),
        certificate_file=given.get("certificate_file", ""),
        certificate_pem=given.get("certificate_pem", ""),
        key_file=given.get("key_file", ""),
        key_pem=given.get("key_pem", ""),
        key_password=given.get("key_password", ""),
        checks_host=given.get("identification", "https").lower() not in ("", "none"),
        checks_certificate=given.get("verification", "true").lower() != "false",
    )


def _needs_pem(what: str, file: str, kind: str) -> str:
    name = "ssl.truststore" if what == "ca" else "ssl.keystore"
    wanted = "-nokeys" if what == "ca" else "-nodes"
    source = file or f"{what}.jks"
    convert = f"openssl pkcs12 -in store.p12 {wanted} -out {what}.pem"
    if kind == "JKS":
        convert = (
            f"keytool -importkeystore -srckeystore {source} -destkeystore store.p12 "
            f"-deststoretype PKCS12 && {convert}"
        )
    return (
        f"{name}: Java's key stores are not read here, PEM files are. Convert it ({convert}), "
        f"then set {name}.type=PEM and {name}.location={what}.pem"
    )


# --- SASL ---


def _sasl(given: Mapping[str, str]) -> Sasl:
    mechanism = given.get("mechanism", "").upper()
    if mechanism not in MECHANISMS:
        what = f"sasl.mechanism={mechanism}" if mechanism else "sasl.mechanism is missing"
        raise InvalidSecurity(f"{what}: want {', '.join(MECHANISMS)}")
    jaas = parse_jaas(given.get("jaas", ""))
    if mechanism == OAUTHBEARER:
        return _bearer(given)
    username = given.get("username") or jaas.get("username", "")
    password = given.get("password") or jaas.get("password", "")
    if not username or not password:
        lacking = "user name" if not username else "password"
        raise InvalidSecurity(
            f"{mechanism} needs a {lacking}: set sasl.username and sasl.password, or "
            'sasl.jaas.config=… required username="NAME" password="SECRET";'
        )
    is_token = mechanism in SCRAM and jaas.get("tokenauth", "").lower() == "true"
    return Sasl(mechanism, username, password, is_delegation_token=is_token)


def parse_jaas(text: str) -> dict[str, str]:
    """The options of the first login module."""
    options = {}
    for match in _JAAS_OPTION.finditer(text):
        quoted = match[2] if match[2] is not None else match[3]
        if quoted is not None:
            options[match[1]] = re.sub(r"\\(.)", r"\1", quoted)
        else:
            options[match[1]] = match[4].rstrip(";")
    return options


def _bearer(given: Mapping[str, str]) -> Sasl:
    url = given.get("token_url", "")
    if url and not url.startswith("file:"):
        raise InvalidSecurity(
            "sasl.oauthbearer.token.endpoint.url: only file: URLs are read here; fetch a token, "
            "and set sasl.oauthbearer.token, or file:/PATH of a file that has the current one"
        )
    path = re.sub(r"^file:(//)?", "", url)
    token = given.get("token", "")
    if not token and not path:
        raise InvalidSecurity(
            "OAUTHBEARER needs a token: set sasl.oauthbearer.token, or "
            "sasl.oauthbearer.token.endpoint.url=file:/PATH"
        )
    return Sasl(OAUTHBEARER, token=token, token_file=path)
