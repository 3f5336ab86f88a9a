"""How a client authenticates and encrypts: values only.

`properties.py` reads them from a file, `tls.py` and `sasl.py` use them. They are passed to Spark's
executors, so they can be pickled; secrets do not appear when they are printed.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class InvalidSecurity(ValueError):
    """Settings that cannot be used. The text names the setting and what to write."""


class Tls(msgspec.Struct, frozen=True):
    """Each as PEM text or as the path of a PEM file. No CA: those of the system."""

    ca_file: str = ""
    ca_pem: str = ""
    certificate_file: str = ""  # with the chain, and the key if `key_file` is empty
    certificate_pem: str = ""
    key_file: str = ""
    key_pem: str = ""
    key_password: str = ""
    checks_host: bool = True
    checks_certificate: bool = True

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return _masked(self, ("key_pem", "key_password"))

    def __repr__(self) -> str:
        return _shown(self)


class Sasl(msgspec.Struct, frozen=True):
    mechanism: str
    username: str = ""
    password: str = ""
    # OAUTHBEARER: a token, or the file that has the current one.
    token: str = ""
    token_file: str = ""
    # SCRAM: the user name is a delegation token's id, the password its HMAC (tokenauth=true).
    is_delegation_token: bool = False

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return _masked(self, ("password", "token"))

    def __repr__(self) -> str:
        return _shown(self)


class Security(msgspec.Struct, frozen=True):
    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        encrypted = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{encrypted}" if self.sasl else encrypted


PLAINTEXT = Security()


def _masked(settings: Tls | Sasl, secret: tuple[str, ...]) -> list[tuple[str, Any]]:
    defaults = {each.name: each.default for each in msgspec.structs.fields(settings)}
    given = [(name, getattr(settings, name)) for name in defaults]
    return [
        (name, "***" if name in secret else value)
        for name, value in given
        if value != defaults[name]
    ]


def _shown(settings: Tls | Sasl) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in settings.__rich_repr__())
    return f"{type(settings).__name__}({fields})"
